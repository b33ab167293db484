"""Costs measured on a GPU, as in a profile: the JSON that `testbed gpu calibrate` and
`testbed import profile` write.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed.core.errors import InputError
from testbed.core.slots import record
from testbed.core.specs import GpuSpec, ModelSpec, ServerSpec
from testbed.cost.all_reduce_times import ring_stand_in
from testbed.cost.attention_times import Attention
from testbed.cost.beside_prompts import BESIDE, decodes_beside_prompts
from testbed.cost.iteration import IterationCost
from testbed.cost.launch_slowness import SLOWNESS, LaunchSlowness
from testbed.cost.launches import UNSEEN, Launches
from testbed.cost.layer_times import Layers
from testbed.cost.link_times import MeasuredLink
from testbed.cost.model import Affine, Launch, Moved, Work
from testbed.cost.sections import (
    PROFILES,
    SYSTEM,
    THIS_ENGINE,
    Choices,
    Rows,
    read_profile,
    rows,
    table,
)
from testbed.cost.software import OF_PROFILE, SoftwareTimes, charged
from testbed.cost.swap_overlap import swapped, with_swaps
from testbed.cost.transfer_times import TierLinks, by_size, host_link, transfers_origin

if TYPE_CHECKING:
    from testbed.cost.kv_groups import KvGroups

__all__ = ["PROFILES", "Choices", "ProfileCost", "read_profile"]

SwapTime = Callable[[int, int], int]
ENGINE = "engine"
MAX_ITERATIONS = 1 << 12  # by tokens and outputs
LAUNCHES = ("launch_prompts", "launch_decodes", UNSEEN)  # sections of the host
KERNELS_BY = ("memory_bandwidth", "fp16_flops", "fp8_flops")  # of a data sheet
SWAP_STAND_IN = (
    "not measured: bytes over the data sheet's link to the host, without latency or a cost of "
    "extents"
)


class ProfileCost(IterationCost):
    """Measured costs of one model's shard on one GPU (PROFILE_FORMAT.md); tensor-parallel GPUs work
    in step.

    A decode iteration of n sequences is affine in their total context between knots, so spans are
    cut at knots and fast-forwarding equals stepping bit for bit. With server None the shard is
    taken by itself: no all-reduces, no swaps.
    """

    def __init__(
        self,
        model: ModelSpec,
        server: ServerSpec | None,
        path: str | Path | Mapping[str, Any],
        choices: Choices | None = None,
        software: SoftwareTimes = OF_PROFILE,
    ) -> None:
        profile = path if isinstance(path, Mapping) else read_profile(path)
        num_gpus = server.num_gpus if server else profile["num_gpus"]
        check_shard(profile, model, num_gpus)
        self.has_data_sheet = profile.get("gpu") is not None
        if server and profile.get("gpu") and profile["fingerprint"]["source"] != "derived":
            check_data_sheet(GpuSpec(**profile["gpu"]), server.gpu)
        self._choices = choices = choices or Choices()
        self.times = self._software_times = software
        self.extra_s = software.extra_s
        self._num_layers = model.num_layers
        self._launches = Launches(profile, self.least)
        if SLOWNESS in profile["sections"]:
            self.slowness = LaunchSlowness(sorted(rows(profile, SLOWNESS)))
        self._layers = Layers(profile, model, server, choices)
        has_beside = BESIDE in profile["sections"]
        self._beside = decodes_beside_prompts(profile) if has_beside else None
        self._attention = attention_of(profile, choices, model)
        self.windows = (model.window.size,) if model.window else ()
        self._tiers = TierLinks(model, server)
        self.link = self._tiers.link
        self.fingerprint = dict(profile["fingerprint"])
        if server:
            self.fingerprint |= _stand_ins(profile, server, self.link)
        self.verifies_as_prompts = profile["fingerprint"].get(SYSTEM) == THIS_ENGINE
        overheads_ps = {}
        if "overhead" in profile["sections"]:
            overheads_ps = {name: ps for (name,), ps in rows(profile, "overhead")}
        self._software = charged(software, num_gpus, overheads_ps)
        self.serving_ps = self._software.serving
        self.software = _system_of(software, overheads_ps, profile["fingerprint"])
        self.fit = profile.get("fit")
        self._made_of = (model, server, profile)
        self._apart = lru_cache(MAX_ITERATIONS)(self._apart_from_attention)
        if type(self).launch is ProfileCost.launch:
            self.launches = self._launches.is_known

    @cached_property
    def _copy(self) -> Callable[[int, int], int]:
        """Times of block copies, which few runs ask for."""
        _, _, profile = self._made_of
        return table(profile, "block_copy", by_size)

    @cached_property
    def _swap(self) -> dict[str, SwapTime]:
        """Times of swaps by their way, which few runs ask for."""
        model, server, profile = self._made_of
        link = host_link(model, server) if server and "swap" not in profile["sections"] else None
        return {way: link or _swaps(profile, self._choices.swap, way) for way in ("out", "in")}

    def varied(
        self, *, launches: float, computing: float, begun: float | None = None
    ) -> "ProfileCost":
        """These costs with launches `launches` times, and all else `computing` times as long.

        begun: the share of the host's slow and fast moments that is over when a run begins; None:
            as in these.
        """
        model, server, profile = self._made_of
        factors = dict.fromkeys(LAUNCHES, launches) | {SLOWNESS: 1.0}
        sections = {
            name: _scaled(section, factors.get(name, computing))
            for name, section in profile["sections"].items()
        }
        changed = {**profile, "sections": sections}
        costs = ProfileCost(model, server, changed, self._choices, self._software_times)
        costs.slowness = self.slowness
        if self.slowness is not None and begun is not None:
            costs.slowness = self.slowness.begun(begun)
        return costs

    def computing_ps(self, work: Work) -> int:
        num_tokens, time_ps = work.num_tokens, 0
        if num_tokens:
            time_ps = self._apart(num_tokens, work.num_outputs, bool(work.prefill))
        if self._beside is not None and work.prefill and work.decode_seqs:
            time_ps += self._beside(num_tokens, work.decode_seqs)
        return time_ps + self._attention(work)

    def _apart_from_attention(self, num_tokens: int, num_outputs: int, has_prompts: bool) -> int:
        """Picoseconds of an iteration over num_tokens tokens, but for its attention and for what
        depends on its requests.
        """
        launched = self._layers.eager if has_prompts else self._layers.graph
        time_ps = self._layers.time_ps(num_tokens, num_outputs) + launched(num_tokens)
        return time_ps + self._software.running(num_tokens)

    def copying_ps(self, copies: tuple[tuple[int, int], ...]) -> int:
        return sum([self._copy(length, count) for length, count in copies])

    def moving_behind(self, computing_ps: int, moves: tuple[Moved, ...]) -> int:
        time_ps = self._with_swaps(computing_ps, moves)
        return self._tiers.behind(time_ps, moves, self._num_layers)

    def least(self, num_tokens: int) -> int:
        launched = min(self._layers.eager(num_tokens), self._layers.graph(num_tokens))
        return self._layers.tokens_ps(num_tokens) + launched + self._software.running(num_tokens)

    def decode(self, work: Work) -> Affine:
        num_seqs = work.decode_seqs
        attention = self._attention.span(work)
        first_ps = attention.first_ps + self._apart(num_seqs, num_seqs, False)
        first_ps += self._software.serving(work)
        return record(Affine, (first_ps, attention.growth_ps, attention.steps))

    def launch(self, decode_seqs: int, num_prompts: int, prompt_tokens: int) -> Launch | None:
        return self._launches(decode_seqs, num_prompts, prompt_tokens)

    def transfer(self, moves: tuple[Moved, ...]) -> int:
        return self._tiers(moves)

    def _with_swaps(self, computing_ps: int, moved: tuple[Moved, ...]) -> int:
        """Swaps both ways share a stream; fused, a run of adjacent blocks is one copy, and few are
        ever pending.
        """
        swaps = swapped(moved)
        moving_ps = {way: self.swap_ps(way, moves) for way, moves in swaps.items()}
        if self._choices.swap_waits == "all in":
            return max(computing_ps + moving_ps["in"], sum(moving_ps.values()))
        per_block = 2 * self._num_layers if self._choices.swap == "per block" else 1
        num_copies = per_block * sum(
            move.num_transfers for moves in swaps.values() for move in moves
        )
        return with_swaps(computing_ps, sum(moving_ps.values()), num_copies, self._num_layers)

    def swap_ps(self, way: str, moves: list[Moved]) -> int:
        """Picoseconds that swaps one way ("out", "in") take by themselves."""
        if self.link is None:
            return sum(self._swap[way](move.length, move.num_transfers) for move in moves)
        if self._choices.swap == "per block":
            return self.link.copied(way, moves)
        return self.link.moved(way, moves)


def attention_of(
    profile: Mapping[str, Any], choices: Choices, model: ModelSpec
) -> "Attention | KvGroups":
    """The times of attention, by its groups for a model with windows or states."""
    if not (model.window or model.states):
        return Attention(profile, choices, model.num_layers)
    from testbed.cost.kv_groups import KvGroups  # few models have them

    return KvGroups(profile, choices, model)


def _scaled(section: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """A section with its times multiplied."""
    num_axes = len(section["axes"])
    points = [
        [*row[:num_axes], *(factor * value for value in row[num_axes:])]
        for row in section["points"]
    ]
    return {**section, "points": points}


def _stand_ins(
    profile: Mapping[str, Any], server: ServerSpec, measured_link: MeasuredLink | None
) -> dict[str, str]:
    """Sources of the times that the profile lacks, by what takes them."""
    stand_ins = dict[str, str]()
    if measured_link is None and "swap" not in profile["sections"]:
        stand_ins["swap"] = SWAP_STAND_IN
    if server.num_gpus > 1 and "all_reduce" not in profile["sections"]:
        stand_ins["all_reduce"] = ring_stand_in(server)
    if server.tiers or measured_link:
        stand_ins["transfers"] = transfers_origin(server)
    return stand_ins


def _swaps(profile: Mapping[str, Any], method: str, way: str) -> SwapTime:
    def of_way(points: Rows) -> SwapTime:
        return by_size((key[2:], ps) for key, ps in points if key[:2] == (method, way))

    return table(profile, "swap", of_way)


def _system_of(
    times: SoftwareTimes, overheads_ps: Mapping[str, int], fingerprint: Mapping[str, Any]
) -> str | None:
    """The name of the system whose software times are charged: theirs, else this project's
    engine, if `testbed gpu calibrate` measured it; None if the times are the user's own,
    fitted on a log, or none.
    """
    is_of_user = (
        times.overhead_s is not None or "software_fitted_on" in fingerprint or not overheads_ps
    )
    return times.name or (None if is_of_user else ENGINE)


def check_shard(profile: Mapping[str, Any], model: ModelSpec, num_gpus: int) -> None:
    """Raise InputError unless the profile is of this model's shape on num_gpus GPUs."""
    profiled = ModelSpec(**profile["model"])
    if not model.is_shaped_like(profiled) or profile["num_gpus"] != num_gpus:
        raise InputError(
            key="the profile",
            problem=(
                f"is of {profiled.name} on {profile['num_gpus']} GPU(s), the run is of "
                f"{model.name} on {num_gpus}{_other_value(profiled, model)}"
            ),
        )


def check_data_sheet(source: GpuSpec, gpu: GpuSpec, names: Iterable[str] = KERNELS_BY) -> None:
    """A GPU of the source's name has these values of its data sheet: times measured on it follow no
    other. Values that one of them does not say are not compared.
    """
    for name in names:
        value, own = getattr(gpu, name), getattr(source, name)
        if source.name == gpu.name and None not in (own, value) and value != own:
            raise InputError(
                key=f"server.gpu.{name}",
                value=_number(value),
                problem=(
                    f"nothing reads it, for the times were measured on {gpu.name}, which has "
                    f"{_number(own)}"
                ),
                remedy=(
                    "cost=analytic computes them; server.gpu.name=X server.gpu.device='' "
                    "server.gpu.transfers=null is another GPU, for which they are derived"
                ),
            )


def _number(value: float | None) -> str:
    return "null" if value is None else f"{value:g}"


def _other_value(profiled: ModelSpec, model: ModelSpec) -> str:
    """The first value of the shape that differs, if the names of the models are the same."""
    if profiled.name != model.name:
        return ""
    there = replace(profiled, max_len=model.max_len, tied_embedding=model.tied_embedding)
    for name in (field.name for field in fields(ModelSpec)):
        theirs, ours = getattr(there, name), getattr(model, name)
        if theirs != ours:
            words = ("null" if value is None else value for value in (ours, theirs))
            return ", with model.{}={} (it has {})".format(name, *words)
    return ""
