"""Transfers between the GPUs and the tiers below them: as measured on the GPU's link, or as the data sheet has them."""

from collections.abc import Iterable

from testbed.core.errors import InputError
from testbed.core.request import PS
from testbed.core.slots import DEVICE, HOST
from testbed.core.specs import ModelSpec, ServerSpec, TierSpec
from testbed.cost.link_times import GATHER, INTO, OUT, measured_link
from testbed.cost.model import Moved
from testbed.cost.transfers import with_swaps


def tier_bandwidths(server: ServerSpec, tier: TierSpec) -> tuple[float, float]:
    """Bytes/s of reading and writing, over all GPUs together."""
    links = server.num_gpus * server.gpu.host_bandwidth
    return tier.read_bandwidth or links, tier.write_bandwidth or links


def transfers_origin(server: ServerSpec) -> str:
    """Where the times of transfers between the GPUs and what is below them come from."""
    if server.gpu.transfers is not None:
        return f"measured by extents ({server.gpu.transfers}); tiers with a bandwidth of their own by it"
    return "data sheet: bytes over bandwidth, without what calls and extents cost (testbed measure transfers)"


class TierLinks:
    """Picoseconds of transfers, one after another, from or to a tier of the server; swaps are left out.

    A tier without a bandwidth of its own is reached over the GPUs' links, and what these take is measured where the GPU
    names measured transfers, which a kernel gathers. Any other time is a lower bound: bytes over bandwidth, without
    staging copies and the driver's queue. The tier's latency_s and extent_s are the user's values, and are added to
    both. Raises InputError for a tier that the server does not have.
    """

    def __init__(self, model: ModelSpec, server: ServerSpec | None) -> None:
        self._slot_bytes = model.kv_bytes_per_token
        self._tiers = dict(server.tiers or {}) if server else {}
        self._bandwidths = {name: tier_bandwidths(server, tier) for name, tier in self._tiers.items() if server}
        self.link = measured_link(model, server)

    def __call__(self, moves: Iterable[Moved]) -> int:
        by_ends = dict[tuple[str, str], list[Moved]]()
        for move in moves:
            if HOST not in (move.source, move.target):
                by_ends.setdefault((move.source, move.target), []).append(move)
        latency_s = sum(self._tier(name).latency_s for ends in by_ends for name in ends if name != DEVICE)
        return round(latency_s * PS) + sum(self._moving_ps(*ends, crossing) for ends, crossing in by_ends.items())

    def behind(self, computing_ps: int, moves: tuple[Moved, ...], num_layers: int) -> int:
        """Time of an iteration that computes for computing_ps and hides these moves behind it, as it does swaps."""
        num_copies = sum(move.num_transfers for move in moves if HOST not in (move.source, move.target))
        return with_swaps(computing_ps, self(moves), num_copies, num_layers) if num_copies else computing_ps

    def _moving_ps(self, source: str, target: str, moves: list[Moved]) -> int:
        """Time of moves between the same two tiers, without their latency."""
        tiers = [self._tier(name) for name in (source, target) if name != DEVICE]
        extent_s = sum(tier.extent_s for tier in tiers)
        is_read = target == DEVICE
        own = tiers[-1].read_bandwidth if is_read else tiers[-1].write_bandwidth
        if self.link is not None and own is None and DEVICE in (source, target):
            num_extents = sum(move.extents for move in moves)
            return self.link(GATHER, INTO if is_read else OUT, moves) + round(num_extents * extent_s * PS)
        ways = [(name, way) for way, name in enumerate((source, target)) if name != DEVICE]
        bandwidth = min(self._bandwidths[name][way] for name, way in ways)
        return sum(
            round(move.num_transfers * (extent_s + move.length * self._slot_bytes / bandwidth) * PS) for move in moves
        )

    def _tier(self, name: str) -> TierSpec:
        if name not in self._tiers:
            known = ", ".join(self._tiers) or "none"
            raise InputError(f"transfers from or to {name}: the server has no such tier (it has {known})")
        return self._tiers[name]
