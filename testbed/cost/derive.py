"""A profile for a GPU that nobody has at hand: measured efficiencies, as functions of shape, on another data sheet.

Each measured time is a launch, which stays, and the rest, which is scaled by the ratio of the two data sheets'
roofline times for the same bytes and FLOPs. Swaps and all-reduces keep all time beyond what their link needs.
"""

from collections.abc import Callable, Mapping
from typing import Any

from testbed.core.errors import InputError
from testbed.core.specs import GpuSpec, ModelSpec, ServerSpec
from testbed.cost.profile import Choices, ProfileCost, read_profile

US = 1e6
METHOD = (
    "launch + (measured - launch) x roofline of the target / roofline of the source; over links: measured time "
    "+ bytes x (1 / target bandwidth - 1 / source bandwidth)"
)
Key = tuple[Any, ...]


def derive(profile: Mapping[str, Any], source: GpuSpec, target: GpuSpec) -> dict[str, Any]:
    """The profile of `source` carried to `target`; its fingerprint says that it was derived, and how."""
    if profile["fingerprint"]["source"] != "measured":
        raise InputError("only a measured profile can be carried to another GPU")
    loads = Loads(ModelSpec(**profile["model"]), profile["num_gpus"])
    launch_us = next(row[1] for row in profile["sections"]["overhead"]["points"] if row[0] == "graph_kernel")
    sections = {}
    for name, section in profile["sections"].items():
        width = len(section["axes"])
        carry = _carrier(name, loads, launch_us, source, target)
        rows = [(tuple(row[:width]), row[width:]) for row in section["points"]]
        points = [[*key, *(round(carry(key, us), 3) for us in times)] for key, times in rows]
        sections[name] = {**section, "points": points}
    origin = {"source": "derived", "device": target.name, "method": METHOD, "from": profile["fingerprint"]}
    return {**profile, "fingerprint": origin, "sections": sections, "fit": None}


def derived_cost(
    model: ModelSpec, server: ServerSpec, source: GpuSpec, choices: Choices, path: str | None = None
) -> ProfileCost:
    """Prices on a server whose GPU nobody has at hand: `path`, a profile of `source`, carried to the server's GPU.

    Without a path it is the shipped profile of the model and its number of GPUs.
    """
    profile = read_profile(path or f"{source.name}-{model.name}-tp{server.num_gpus}")
    return ProfileCost(model, server, derive(profile, source, server.gpu), choices)


class Loads:
    """Bytes of device memory and FLOPs behind each measured point, for one GPU's shard."""

    def __init__(self, model: ModelSpec, num_gpus: int) -> None:
        self.model, self.num_gpus = model, num_gpus
        self.layer = model.layer_params / num_gpus
        self.head = model.vocab_size * model.hidden_size / num_gpus
        self.kv_heads = max(1, model.num_kv_heads // num_gpus)
        self.kv = 2 * self.kv_heads * model.head_size * model.dtype_bytes  # bytes of a token in one layer
        self.pair = 4 * model.num_heads // num_gpus * model.head_size  # FLOPs of a query and a key

    def load(self, section: str, key: Key) -> tuple[float, float]:
        """(bytes, FLOPs) of one point."""
        size = self.model.dtype_bytes
        if section in ("linear", "output_head"):
            weights = self.layer if section == "linear" else self.head
            return weights * size, 2 * weights * key[0]
        if section == "cache_write":
            return 2 * self.kv * key[0], 0
        if section == "prefill_attention":
            count, new, past = key
            return count * (new + past) * self.kv, count * (new * past + new * (new + 1) / 2) * self.pair
        if section == "block_copy":
            return 2 * key[0] * key[1] * self.kv * self.model.num_layers, 0
        return key[3] * self.kv, 0.0

    def sent(self, section: str, key: Key) -> float:
        """Bytes over a link."""
        if section == "swap":
            return float(key[2] * key[3] * self.kv * self.model.num_layers)
        num_gpus, num_bytes = key
        return float(2 * (num_gpus - 1) / num_gpus * num_bytes)


def _carrier(
    section: str, loads: Loads, launch_us: float, source: GpuSpec, target: GpuSpec
) -> Callable[[Key, float], float]:
    """How a time of this section goes from one data sheet to the other."""
    if section == "overhead":
        return lambda key, us: us
    if section in ("swap", "all_reduce"):
        link = "host_bandwidth" if section == "swap" else "link_bandwidth"
        per_byte = US / getattr(target, link) - US / getattr(source, link)
        return lambda key, us: max(us / 4, us + loads.sent(section, key) * per_byte)

    def scaled(key: Key, us: float) -> float:
        fixed = min(us, launch_us)
        load = loads.load(section, key)
        return fixed + (us - fixed) * roofline_s(target, *load) / roofline_s(source, *load)

    return scaled


def roofline_s(gpu: GpuSpec, num_bytes: float, flops: float) -> float:
    """Seconds that a GPU needs at least."""
    return max(num_bytes / gpu.memory_bandwidth, flops / gpu.fp16_flops)
