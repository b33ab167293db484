"""A profile for a GPU or a model that was not measured: a measured profile, moved to another data
sheet or shape.

The time that bytes and FLOPs need at the profile's best rates scales with the ratio of the data
sheets. The rest stays: launches, kernels that wait for each other, the longest sequence of a batch.
DESIGN.md reports the errors of scaling whole times.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.core.errors import InputError
from testbed.core.shapes import check_plain
from testbed.core.specs import GpuSpec, ModelSpec, ServerSpec
from testbed.core.units import PositiveShare
from testbed.cost.profile import Choices, ProfileCost, read_profile
from testbed.cost.sections import SYSTEM
from testbed.cost.software import OF_PROFILE, SoftwareTimes

US = 1e6
METHOD = (
    "measured + (roofline of the target - roofline of the source), both at the best share of the "
    "data sheet that the profile reached; over links: measured + bytes x "
    "(1 / target bandwidth - 1 / source bandwidth)"
)
STREAMS = (
    "linear",
    "output_head",
    "decode_attention",
    "contiguous_attention",
    "decode_attention_paper_kernel",
)
DERIVED = {"source": "derived"}  # in a fingerprint
LINKS = {"swap": "host_bandwidth", "all_reduce": "link_bandwidth"}
# neither bytes nor FLOPs of the shard decide these: software, launches, and shares that are no
# times
UNMOVED = (
    "overhead",
    "decodes_beside_prompts",
    "launch_decodes",
    "launch_prompts",
    "launch_slowness",
    "launch_unseen",
    "launched_eager",
    "launched_graph",
    "once_per_iteration",
    "unequal_lengths",
)
Key = tuple[Any, ...]
Point = tuple[Key, list[float]]
Columns = Sequence[Any]  # the values of a key, or an array of them for each axis: [num_points]


def derive(
    profile: Mapping[str, Any],
    source: GpuSpec,
    target: GpuSpec,
    attainable: float | None = None,
    shard: "Loads | None" = None,
) -> dict[str, Any]:
    """The profile of `source` carried to `target`; its fingerprint records how.

    attainable: the measured share of its memory bandwidth that the target reaches (A100: 0.86, by
    AIConfigurator's tables); None for the share that the source reached. shard: another model's
    shard to carry the profile to; None for its own.
    """
    origin = profile["fingerprint"]
    _check_source(origin)
    loads = Loads(ModelSpec(**profile["model"]), profile["num_gpus"])
    target_loads = shard or loads
    points = {name: measured(section) for name, section in profile["sections"].items()}
    method, bandwidth_share = METHOD, _reached_share(loads, points, source)
    if attainable is not None:
        bandwidth = target.memory_bandwidth * attainable / bandwidth_share
        target = replace(target, memory_bandwidth=bandwidth)
        method += f"; the target reaches {attainable:g} of its memory bandwidth"
    shards, gpus = (loads, target_loads), (source, target)
    sections = {}
    for name, section in profile["sections"].items():
        times = _carried(name, points[name], shards, gpus, bandwidth_share)
        sections[name] = {**section, "points": _rows(points[name], times)}
    return {
        **profile,
        "model": asdict(target_loads.model),
        "num_gpus": target_loads.num_gpus,
        "gpu": asdict(target),
        "fingerprint": {**DERIVED, "device": target.name, "method": method, "from": origin},
        "sections": sections,
        "fit": None,
    }


def _reached_share(loads: "Loads", points: Mapping[str, Sequence[Point]], gpu: GpuSpec) -> float:
    """The share of its memory bandwidth that the GPU reached in its fastest section; no more than
    all of it, as weights from the L2 cache would be.
    """
    rates = [best_rates(loads, name, points[name])[0] for name in STREAMS if name in points]
    return min(1.0, max(rates) / gpu.memory_bandwidth)


def _rows(points: Sequence[Point], times: Sequence[list[float]]) -> list[list[Any]]:
    """The points of a section with other times, as a profile has them."""
    return [
        [*key, *(round(us, 3) for us in times_us)]
        for (key, _), times_us in zip(points, times, strict=True)
    ]


def _check_source(fingerprint: Mapping[str, Any]) -> None:
    """Raise InputError unless the profile has measured times of kernels."""
    if fingerprint["source"] == "derived":
        raise InputError(
            key="the profile",
            problem="is derived: only a measured one can be carried to another GPU",
            remedy="give the measured one",
        )
    if system := fingerprint.get(SYSTEM):
        raise InputError(
            key="the profile",
            problem=(
                f"has whole iterations of {system}, which are not carried to another GPU, "
                "model or system"
            ),
            remedy="give one of kernels: testbed gpu calibrate without --system",
        )


def measured(section: Mapping[str, Any]) -> list[Point]:
    """The points of a section: the measured counts, and their times in microseconds, the median
    first.
    """
    width = len(section["axes"])
    return [(tuple(row[:width]), row[width:]) for row in section["points"]]


def best_rates(loads: "Loads", name: str, points: Sequence[Point]) -> tuple[float, float]:
    """The highest bytes/s and FLOP/s of a section."""
    num_bytes, flops = loads.load(name, columns_of(points))
    times_us = np.array([times[0] for _, times in points])
    return float((num_bytes * US / times_us).max()), float((flops * US / times_us).max())


def columns_of(points: Sequence[Point]) -> Columns:
    """The keys of points as one array for each axis."""
    return [np.array(column) for column in zip(*(key for key, _ in points), strict=True)]


def derived_cost(
    model: ModelSpec,
    server: ServerSpec,
    source: GpuSpec,
    choices: Choices,
    path: str | None = None,
    attainable: PositiveShare | None = None,
    software: SoftwareTimes = OF_PROFILE,
) -> ProfileCost:
    """Costs scaled to the server's GPU from a profile of `source`: `path`, or the shipped one of
    model and num_gpus.
    """
    profile = read_profile(path or f"{source.name}-{model.name}-tp{server.num_gpus}")
    carried = derive(profile, source, server.gpu, attainable)
    return ProfileCost(model, server, carried, choices, software)


class Loads:
    """Bytes of memory and FLOPs behind each point of one GPU's shard. byte_kv_bandwidth: as in
    Efficiencies.
    """

    def __init__(self, model: ModelSpec, num_gpus: int, byte_kv_bandwidth: float = 1.0) -> None:
        check_plain(replace(model, kv_dtype_bytes=None), "a profile")
        self.model, self.num_gpus = model, num_gpus
        self.layer = model.layer_params / num_gpus
        self.head = model.vocab_size * model.hidden_size / num_gpus
        self.kv_heads = max(1, model.num_kv_heads // num_gpus)
        value_bytes = model.kv_dtype_bytes or model.dtype_bytes
        self.kv = 2 * self.kv_heads * model.head_size * value_bytes  # bytes of a token in one layer
        # Bytes that a decode's read of a token amounts to, at the bandwidth of wide values
        self.read = self.kv / byte_kv_bandwidth if value_bytes == 1 else self.kv
        self.pair = 4 * model.num_heads // num_gpus * model.head_size  # FLOPs of a query and a key

    def load(self, section: str, key: Columns) -> tuple[Any, Any]:
        """Bytes of memory, or of the link, and FLOPs of a point with this key, or of each point of
        columns.
        """
        size = self.model.dtype_bytes
        if section in ("linear", "output_head"):
            weights = self.layer if section == "linear" else self.head
            return weights * size, 2 * weights * key[0]
        if section == "cache_write":
            return 2 * self.kv * key[0], 0
        if section == "prefill_attention":
            count, new, past = key
            pairs = count * (new * past + new * (new + 1) / 2)
            return count * (new + past) * self.kv, pairs * self.pair
        if section == "block_copy":
            return 2 * key[0] * key[1] * self.kv * self.model.num_layers, 0
        if section == "mixed_attention":
            new, past, num_seqs, mean = key
            pairs = new * past + new * (new + 1) / 2
            return (new + past) * self.kv + num_seqs * mean * self.read, pairs * self.pair
        if section == "swap":  # bytes over a link
            return key[2] * key[3] * self.kv * self.model.num_layers, 0
        if section == "all_reduce":
            return 2 * (key[0] - 1) / key[0] * key[1], 0
        return key[-1] * self.read, 0.0


def _carried(
    name: str,
    points: Sequence[Point],
    shards: tuple["Loads", "Loads"],
    gpus: tuple[GpuSpec, GpuSpec],
    bandwidth_share: float,
) -> Sequence[list[float]]:
    """A section's points, whose times are scaled from one shard and data sheet to another; times of
    links by the bytes that are sent.
    """
    if name in UNMOVED:
        return [times for _, times in points]
    if name not in LINKS:
        return _over_roofline(name, points, shards, gpus, bandwidth_share)
    keys = columns_of(points)
    here, there = (loads.load(name, keys)[0] for loads in shards)
    us_per_byte, target_us_per_byte = (US / float(getattr(gpu, LINKS[name])) for gpu in gpus)
    slower_us = (here * (target_us_per_byte - us_per_byte)).tolist()
    more_us = ((there - here) * target_us_per_byte).tolist()
    return [
        [max(us / 4, us + slower + more) for us in times]
        for (_, times), slower, more in zip(points, slower_us, more_us, strict=True)
    ]


def _over_roofline(
    name: str,
    points: Sequence[Point],
    shards: tuple["Loads", "Loads"],
    gpus: tuple[GpuSpec, GpuSpec],
    bandwidth_share: float,
) -> list[list[float]]:
    """Times scaled by the ratio of both rooflines. The share of the memory bandwidth is the
    device's, the share of the peak is the section's: that of its kernels.
    """
    _, flop_rate = best_rates(shards[0], name, points)
    keys, shares = columns_of(points), (bandwidth_share, flop_rate / gpus[0].fp16_flops)
    source_us, target_us = (
        roofline_us(gpu, shares, *loads.load(name, keys))
        for gpu, loads in zip(gpus, shards, strict=True)
    )
    longer = np.broadcast_to(target_us / source_us - 1, len(points)).tolist()
    limits = np.broadcast_to(source_us, len(points)).tolist()
    return [  # less than the roofline, if the L2 cache helped
        [us + min(us, limit) * more for us in times]
        for (_, times), limit, more in zip(points, limits, longer, strict=True)
    ]


def roofline_us(
    gpu: GpuSpec, shares: tuple[float, float], num_bytes: Any, flops: Any
) -> NDArray[np.float64]:
    """Microseconds that a GPU needs to move num_bytes or to compute `flops`, whichever takes
    longer, for each point; shares: of its data sheet's bandwidth and peak.
    """
    bandwidth_share, flops_share = shares
    moving = num_bytes / (gpu.memory_bandwidth * bandwidth_share)
    computing = flops / (gpu.fp16_flops * flops_share) if np.any(flops) else 0.0
    longer: NDArray[np.float64] = US * np.maximum(moving, computing)
    return longer
