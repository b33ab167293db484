"""The best costs at hand for a model on a server: measured, else derived from the nearest profile,
else a roofline.

The nearest profile is found by shapes and by GPU, never by a model's name.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from math import log
from pathlib import Path
from types import MappingProxyType
from typing import Any

from testbed.core.errors import InputError
from testbed.core.specs import GpuSpec, ModelSpec, ServerSpec
from testbed.core.units import PositiveShare
from testbed.cost.analytic import AnalyticCost, Efficiencies
from testbed.cost.derive import Loads, derive
from testbed.cost.known_profiles import Known, is_elsewhere, of_systems, profiles_at_hand
from testbed.cost.profile import KERNELS_BY, ProfileCost, check_data_sheet
from testbed.cost.sections import BALANCED, DECODES, SYSTEM, USUAL_BLOCK, Choices, rows
from testbed.cost.software import OF_PROFILE, SoftwareTimes

Costs = AnalyticCost | ProfileCost
# Of the choices, what is about measured times; a roofline has none
OF_PROFILES = ("attention_scale", "swap_waits", "cuda_graph_sizes")
MEASURED = "measured"
OTHER_GPU = "other GPU"
OTHER_MODEL = "other model"
OTHER_CACHE = "other cache"
ROOFLINE = "roofline"
# Ratio of the weights of a layer beyond which launches bound the kernels of one model only
FARTHEST = log(8)


def auto_cost(
    model: ModelSpec,
    server: ServerSpec,
    source: GpuSpec,
    choices: Choices,
    roofline: Efficiencies,
    path: str | Path | None = None,
    attainable: Mapping[str, PositiveShare] = MappingProxyType({}),
    iterations: str | None = None,
    software: SoftwareTimes = OF_PROFILE,
) -> Costs:
    """Costs of `model` on `server`; their fingerprint says which way they came.

    source: the GPU of the shipped profiles. path: more profiles, which come first. Without it come
    first those of whole iterations of a system, of the folder `iterations` that ships, if one is
    of this model and GPU; then those of the software's system. attainable: measured shares of
    memory bandwidth by GPU. roofline: used if no profile is near; its byte_kv_bandwidth also serves
    a profile of a wider cache. software: charged, but for a fitted profile's own times, and those
    in whole iterations.
    """
    check_data_sheet(source, server.gpu, (*KERNELS_BY, "link_bandwidth"))
    best: Callable[..., Mapping[str, Any] | None] = best_shipped
    if path is not None:
        best = partial(best_profile, path=path)
    profile = best(
        model=model,
        gpu=server.gpu,
        num_gpus=server.num_gpus,
        source=source,
        system=software.name,
        iterations=iterations,
        share=attainable.get(server.gpu.name),
        byte_kv_bandwidth=roofline.byte_kv_bandwidth,
    )
    if profile is None:
        _check_roofline(model, server, choices, path)
        return AnalyticCost(model, server, roofline, software)
    return read_as(choices, software, profile, model, server)


def best_profile(
    model: ModelSpec,
    gpu: GpuSpec,
    num_gpus: int,
    source: GpuSpec,
    system: str | None,
    iterations: str | None,
    share: float | None,
    byte_kv_bandwidth: float,
    path: str | Path | None = None,
) -> Mapping[str, Any] | None:
    """The nearest profile, carried to the model and the GPU; None if none is near. share: the GPU's
    of `attainable`; system: whose layers may have been measured; the rest as in auto_cost.
    """
    server = ServerSpec("any", gpu, num_gpus)
    of_system = [] if path else of_systems(iterations, system, gpu)
    candidates = [*of_system, *profiles_at_hand(path, (source, gpu))]
    nearest_by_way = by_way(model, server, candidates)
    if path is not None and not Path(path).is_dir():
        _check_whole_iterations(path, candidates[0], nearest_by_way.get(MEASURED))
    for way, nearest in nearest_by_way.items():
        if way == MEASURED:
            return nearest.profile
        return carried(way, nearest, model, server, candidates, share, byte_kv_bandwidth)
    return None


# Without files of the user's, which alone may change: computed once for the runs of a process
best_shipped = lru_cache(maxsize=64)(best_profile)


def _check_whole_iterations(path: str | Path, named: Known, measured: Known | None) -> None:
    """Raise InputError if the user's file has whole iterations of a system that are not those of
    the run: they are not carried elsewhere, and other costs would not compare with them.
    """
    if named.is_whole and named is not measured:
        own = named.profile["fingerprint"]
        raise InputError(
            key="cost.path",
            value=path,
            problem=(
                f"has whole iterations of {own['system']} with {named.model.name} on "
                f"{named.profile['num_gpus']} x {own['device']}, which are not carried to another "
                "model, GPU or type of K and V"
            ),
            remedy="leave cost.path out for costs from other profiles",
        )


def _check_roofline(
    model: ModelSpec, server: ServerSpec, choices: Choices, path: str | Path | None
) -> None:
    """Raise InputError if the user asked for what a roofline does not have."""
    if path is not None:
        raise InputError(
            key="cost.path",
            value=path,
            problem=(
                f"has no profile of {model.name}'s shape and types on {server.num_gpus} GPU(s), "
                "and none near it (import one; without a path it is a roofline)"
            ),
        )
    if choices.experts != BALANCED:
        raise InputError(
            key="cost.choices.experts",
            value=choices.experts,
            problem=(
                f"no profile of {model.name} is at hand, and a roofline is balanced (import "
                "profile makes one; cost.path=FILE)"
            ),
        )
    for name in OF_PROFILES:
        if getattr(choices, name) != getattr(Choices(), name):
            raise InputError(
                key=f"cost.choices.{name}",
                value=getattr(choices, name),
                problem=(
                    f"nothing reads it, for no profile of {model.name} is at hand, and the times "
                    "are a roofline"
                ),
                remedy="cost.roofline.NAME=X",
            )


def read_as(
    choices: Choices,
    software: SoftwareTimes,
    profile: Mapping[str, Any],
    model: ModelSpec,
    server: ServerSpec,
) -> ProfileCost:
    """The profile's costs for a block size that it has, the next larger one if it can, and with its
    own software times if they were fitted on a server's log, or are in whole iterations.
    """
    section = DECODES[choices.kernel]
    if section in profile["sections"] and len(profile["sections"][section]["axes"]) == 4:
        sizes = sorted({key[0] for key, _ in rows(profile, section) if key[1] == choices.spread})
        block = choices.block_size or USUAL_BLOCK
        larger = (size for size in sizes if size >= block)
        choices = replace(choices, block_size=next(larger, sizes[-1] if sizes else block))
    if {"software_fitted_on", SYSTEM} & set(profile["fingerprint"]):
        software = replace(OF_PROFILE, extra_s=software.extra_s)
    return ProfileCost(model, server, profile, choices, software)


def by_way(model: ModelSpec, server: ServerSpec, sources: Iterable[Known]) -> dict[str, Known]:
    """The nearest profile of each way to this model's costs, the best way first; empty if none is
    near enough.

    MEASURED: of this shape, GPU and number of GPUs. OTHER_GPU: of this shape and number on another
    GPU. OTHER_MODEL: of the shape whose shard is most alike, rather on this GPU than on another.
    The earlier of equals is taken. A model that is not plain (ModelSpec.is_plain) has MEASURED
    only, or OTHER_CACHE: the best of these ways for the same model with K and V of the type of its
    weights.
    """
    candidates = list(sources)
    if not model.is_plain:
        return _by_way_not_plain(model, server, candidates)
    shard = Loads(model, server.num_gpus)
    profiles_by_way = dict[str | None, list[Known]]()
    for candidate in candidates:
        if candidate.model.is_plain:
            profiles_by_way.setdefault(_way(candidate, shard, server.gpu), []).append(candidate)

    def rank(candidate: Known) -> tuple[float, bool]:
        """Ratios of a layer's weights, and of the width that its small kernels (norms, residual
        adds) work on, whose time no bandwidth carries over; then whether it is of another GPU.
        """
        weights = abs(log(candidate.layer / shard.layer))
        width = abs(log(candidate.model.hidden_size / model.hidden_size))
        return weights + width, is_elsewhere(candidate, server.gpu)

    ways = (MEASURED, OTHER_GPU, OTHER_MODEL)
    return {way: min(profiles_by_way[way], key=rank) for way in ways if way in profiles_by_way}


def _by_way_not_plain(
    model: ModelSpec, server: ServerSpec, candidates: list[Known]
) -> dict[str, Known]:
    for candidate in candidates:
        if candidate.is_of(model, server.num_gpus) and not is_elsewhere(candidate, server.gpu):
            return {MEASURED: candidate}
    wide_cache = replace(model, kv_dtype_bytes=None)
    if not wide_cache.is_plain:
        return {}
    of_kernels = [candidate for candidate in candidates if not candidate.is_whole]
    for nearest in by_way(wide_cache, server, of_kernels).values():
        if nearest.profile["fingerprint"]["source"] != "derived":
            return {OTHER_CACHE: nearest}
    return {}


def _way(candidate: Known, shard: Loads, gpu: GpuSpec) -> str | None:
    """The derivation of a shard's costs from a profile; None if that is impossible.

    A derived profile is not derived again.
    """
    is_same_shape = candidate.is_of(shard.model, shard.num_gpus)
    if is_same_shape and not is_elsewhere(candidate, gpu):
        return MEASURED
    is_derived = candidate.profile["fingerprint"]["source"] == "derived"
    is_fixed = candidate.of_system or candidate.is_whole or is_derived
    if is_fixed or candidate.model.dtype_bytes != shard.model.dtype_bytes:
        return None
    if is_same_shape:
        return OTHER_GPU
    return OTHER_MODEL if abs(log(candidate.layer / shard.layer)) < FARTHEST else None


def carried(
    way: str,
    nearest: Known,
    model: ModelSpec,
    server: ServerSpec,
    sources: Iterable[Known],
    attainable: float | None = None,
    byte_kv_bandwidth: float = 1.0,
) -> dict[str, Any]:
    """The nearest profile, carried to this model's shard and this GPU; its fingerprint names the
    way and the origin.

    A profile of one GPU has no all-reduces; they come from another profile of the same GPU, since
    they do not depend on the model. byte_kv_bandwidth: as in Loads.
    """
    shard = Loads(model, server.num_gpus, byte_kv_bandwidth)
    share = attainable if is_elsewhere(nearest, server.gpu) else None
    profile = derive(nearest.profile, nearest.gpu, server.gpu, share, shard)
    if server.num_gpus > 1 and "all_reduce" not in profile["sections"]:
        for other in sources:
            is_of_gpu = other.gpu == nearest.gpu and other.model.is_plain
            if is_of_gpu and "all_reduce" in other.profile["sections"]:
                derived = derive(other.profile, other.gpu, server.gpu, shard=shard)
                profile["sections"]["all_reduce"] = derived["sections"]["all_reduce"]
                break
    origin = {
        **nearest.profile["fingerprint"],
        "model": nearest.profile["model"]["name"],
        "num_gpus": nearest.profile["num_gpus"],
    }
    return {**profile, "fingerprint": {**profile["fingerprint"], "way": way, "from": origin}}
