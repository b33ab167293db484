"""Transfers between the GPUs and the tiers below them, by the data sheet: latency, extents, bytes over bandwidth."""

from collections.abc import Iterable

from testbed.core.errors import InputError
from testbed.core.request import PS
from testbed.core.slots import DEVICE, HOST
from testbed.core.specs import ModelSpec, ServerSpec, TierSpec
from testbed.cost.model import Moved
from testbed.cost.transfers import with_swaps


def tier_bandwidths(server: ServerSpec, tier: TierSpec) -> tuple[float, float]:
    """Bytes/s of reading and writing, over all GPUs together."""
    links = server.num_gpus * server.gpu.host_bandwidth
    return tier.read_bandwidth or links, tier.write_bandwidth or links


class TierLinks:
    """Picoseconds of transfers, one after another, from or to a tier of the server; swaps are left out.

    It is a lower bound where the tier was not measured: it leaves out staging copies and the driver's queue, and
    `extent_s` is the user's value. Raises InputError for a tier that the server does not have.
    """

    def __init__(self, model: ModelSpec, server: ServerSpec | None) -> None:
        self._slot_bytes = model.kv_bytes_per_token
        self._tiers = dict(server.tiers or {}) if server else {}
        self._bandwidths = {name: tier_bandwidths(server, tier) for name, tier in self._tiers.items() if server}

    def __call__(self, moves: Iterable[Moved]) -> int:
        crossing = [move for move in moves if HOST not in (move.source, move.target)]
        links = {(move.source, move.target) for move in crossing}
        latency_s = sum(self._tier(name).latency_s for ends in links for name in ends if name != DEVICE)
        return round(latency_s * PS) + sum(map(self._moving_ps, crossing))

    def behind(self, computing_ps: int, moves: tuple[Moved, ...], num_layers: int) -> int:
        """Time of an iteration that computes for computing_ps and hides these moves behind it, as it does swaps."""
        num_copies = sum(move.num_transfers for move in moves if HOST not in (move.source, move.target))
        return with_swaps(computing_ps, self(moves), num_copies, num_layers) if num_copies else computing_ps

    def _moving_ps(self, move: Moved) -> int:
        source, target, length, count = move
        ends = [(name, way) for way, name in enumerate((source, target)) if name != DEVICE]
        bandwidth = min(self._bandwidths[name][way] for name, way in ends)
        extent_s = sum(self._tier(name).extent_s for name, _ in ends)
        return round(count * (extent_s + length * self._slot_bytes / bandwidth) * PS)

    def _tier(self, name: str) -> TierSpec:
        if name not in self._tiers:
            known = ", ".join(self._tiers) or "none"
            raise InputError(f"transfers from or to {name}: the server has no such tier (it has {known})")
        return self._tiers[name]
