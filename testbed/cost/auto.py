"""The best costs at hand for a model on a server: measured, else derived from the nearest profile, else a roofline."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from testbed.core.errors import InputError
from testbed.core.specs import GpuSpec, ModelSpec, ServerSpec
from testbed.cost.analytic import AnalyticCost, Efficiencies
from testbed.cost.nearest import MEASURED, by_way, carried, profiles_at_hand, profiles_of
from testbed.cost.profile import ProfileCost
from testbed.cost.sections import BALANCED, Choices, has, rows

Costs = AnalyticCost | ProfileCost
SOFTWARE = (
    "software", "overhead_s", "overhead_per_request_s", "overhead_per_token_s", "overhead_per_sequence_s", "extra_s",
)  # fmt: skip


def auto_cost(
    model: ModelSpec,
    server: ServerSpec,
    source: GpuSpec,
    choices: Choices,
    roofline: Efficiencies,
    path: str | Path | None = None,
    attainable: Mapping[str, float] = MappingProxyType({}),
) -> Costs:
    """Costs of `model` on `server`; their fingerprint says which way they came.

    source: the GPU of the shipped profiles. path: more profiles, which come first; without it those of the choices'
    system. attainable: measured shares of memory bandwidth by GPU. roofline: where no profile is near; its
    byte_kv_bandwidth also serves a profile of a wider cache. Software times are the choices', but for a fitted
    profile's own.
    """
    of_system = [] if path else profiles_of(choices.software, server.gpu)
    known = [*of_system, *profiles_at_hand(path, (source, server.gpu))]
    found = by_way(model, server, known)
    if not found:
        if path is not None:
            raise InputError(f"cost.path={path}: has no profile of {model.name}'s shape and types on {server.num_gpus} "
                             "GPU(s), and none near it (import one; without a path it is a roofline)")  # fmt: skip
        if choices.experts != BALANCED:
            raise InputError(f"cost.choices.experts={choices.experts}: no profile of {model.name} is at hand, and a "
                             "roofline is balanced (import-profile makes one; cost.path=FILE)")  # fmt: skip
        software = {name: getattr(choices, name) for name in SOFTWARE}
        return AnalyticCost(model, server, replace(roofline, **software))
    way, one = next(iter(found.items()))
    share = attainable.get(server.gpu.name)
    profile = one.profile
    if way != MEASURED:
        profile = carried(way, one, model, server, known, share, roofline.byte_kv_bandwidth)
    return ProfileCost(model, server, profile, suited(choices, profile))


def suited(choices: Choices, profile: Mapping[str, Any]) -> Choices:
    """The choices with a block size that the profile has, the next larger one if it can, and with its own software
    times where they were fitted on a server's log."""
    section = choices.decode_section
    if has(profile, section) and len(profile["sections"][section]["axes"]) == 4:
        sizes = sorted({key[0] for key, _ in rows(profile, section) if key[1] == choices.spread})
        larger = (size for size in sizes if size >= choices.block_size)
        choices = replace(choices, block_size=next(larger, sizes[-1] if sizes else choices.block_size))
    if "software_fitted_on" not in profile["fingerprint"]:
        return choices
    return replace(
        choices, software=None, overhead_s=None, overhead_per_request_s=None, overhead_per_token_s=None,
        overhead_per_sequence_s=0.0, overhead_per_input_s=0.0,
    )  # fmt: skip
