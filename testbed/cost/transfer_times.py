"""Times of data that crosses memory or a link: block copies, swaps by themselves, transfers of
tiers.
"""

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from testbed.core.errors import InputError
from testbed.core.request import PS
from testbed.core.slots import DEVICE, HOST, ceil_div
from testbed.core.specs import ModelSpec, ServerSpec, TierSpec
from testbed.cost.interpolation import blend, bracket, curves
from testbed.cost.link_times import INTO, OUT, MeasuredLink, measured_link
from testbed.cost.model import Moved
from testbed.cost.swap_overlap import with_swaps


def by_size(points: Iterable[tuple[tuple[Any, ...], int]]) -> Callable[[int, int], int]:
    """Times by block size and blocks, blended between sizes; a longer extent counts as blocks of
    the largest size.
    """
    times = curves((size, count, ps) for (size, count), ps in points)
    sizes = list(times)

    def at(block_size: int, num_blocks: int) -> int:
        largest = sizes[-1]
        if block_size > largest:
            num_blocks *= ceil_div(block_size, largest)
            block_size = largest
        if block_size in times:
            return times[block_size](num_blocks)
        low, high = bracket(sizes, block_size)
        at_low, at_high = times[low](num_blocks), times[high](num_blocks)
        return max(0, blend(low, high, block_size, at_low, at_high))

    return at


def host_link(model: ModelSpec, server: ServerSpec) -> Callable[[int, int], int]:
    """Swaps that were not measured: bytes over the data sheet's link to the host, each GPU its
    share, no latency.

    A bound from below; measured swaps reach some nine tenths of a link, and those of single small
    blocks far less.
    """
    num_gpus = server.num_gpus
    ps_per_slot = model.kv_bytes_on(num_gpus) / num_gpus / server.gpu.host_bandwidth * PS
    return lambda block_size, num_blocks: round(block_size * num_blocks * ps_per_slot)


def tier_bandwidths(server: ServerSpec, tier: TierSpec) -> tuple[float, float]:
    """Bytes/s of reading and writing, over all GPUs together."""
    links = server.num_gpus * server.gpu.host_bandwidth
    return tier.read_bandwidth or links, tier.write_bandwidth or links


def transfers_origin(server: ServerSpec) -> str:
    """The origin of the times of transfers between the GPUs and the tiers below them."""
    if server.gpu.transfers is not None:
        return (
            f"measured by extents ({server.gpu.transfers}); tiers with a bandwidth of their own by "
            "it"
        )
    return (
        "data sheet: bytes over bandwidth, without what calls and extents cost (testbed gpu "
        "measure transfers)"
    )


class TierLinks:
    """Picoseconds of transfers, one after another, from or to a tier of the server; swaps are left
    out.

    A tier without a bandwidth of its own takes the measured times of the GPUs' links, if there
    are any (`gather`). Any other time is a lower bound: bytes over bandwidth. The tier's latency_s
    and extent_s are added to both. Raises InputError for a tier that the server does not have.
    """

    def __init__(self, model: ModelSpec, server: ServerSpec | None) -> None:
        self._slot_bytes = model.kv_bytes_per_token
        self._tiers = dict(server.tiers or {}) if server else {}
        self._bandwidths = {
            name: tier_bandwidths(server, tier) for name, tier in self._tiers.items() if server
        }
        self.link: MeasuredLink | None = None
        if server is not None and server.gpu.transfers is not None:
            self.link = measured_link(model, server)

    def __call__(self, moves: Iterable[Moved]) -> int:
        by_ends = dict[tuple[str, str], list[Moved]]()
        for move in moves:
            if HOST not in (move.source, move.target):
                by_ends.setdefault((move.source, move.target), []).append(move)
        below = [name for name in chain.from_iterable(by_ends) if name != DEVICE]
        latency_s = sum(self._tier(name).latency_s for name in below)
        return round(latency_s * PS) + sum(
            self._moving_ps(*ends, crossing) for ends, crossing in by_ends.items()
        )

    def behind(self, computing_ps: int, moves: tuple[Moved, ...], num_layers: int) -> int:
        """Time of an iteration that computes for computing_ps and hides these moves behind it, as
        it does swaps.
        """
        num_copies = sum(
            move.num_transfers for move in moves if HOST not in (move.source, move.target)
        )
        if not num_copies:
            return computing_ps
        return with_swaps(computing_ps, self(moves), num_copies, num_layers)

    def _moving_ps(self, source: str, target: str, moves: list[Moved]) -> int:
        tiers = [self._tier(name) for name in (source, target) if name != DEVICE]
        extent_s = sum(tier.extent_s for tier in tiers)
        is_read = target == DEVICE
        own_bandwidth = tiers[-1].read_bandwidth if is_read else tiers[-1].write_bandwidth
        if self.link is not None and own_bandwidth is None and DEVICE in (source, target):
            way = INTO if is_read else OUT
            num_extents = sum(move.extents for move in moves)
            return self.link.moved(way, moves) + round(num_extents * extent_s * PS)
        bandwidth = self._slower_bandwidth(source, target)
        return sum(
            round(move.num_transfers * (extent_s + move.length * self._slot_bytes / bandwidth) * PS)
            for move in moves
        )

    def _slower_bandwidth(self, source: str, target: str) -> float:
        """Bytes/s of reading from the source or of writing to the target, the slower of both."""
        bandwidths = []
        if source != DEVICE:
            read_bandwidth, _ = self._bandwidths[source]
            bandwidths.append(read_bandwidth)
        if target != DEVICE:
            _, write_bandwidth = self._bandwidths[target]
            bandwidths.append(write_bandwidth)
        return min(bandwidths)

    def _tier(self, name: str) -> TierSpec:
        if name not in self._tiers:
            names = ", ".join(self._tiers) or "none"
            raise InputError(
                key=f"server.tiers.{name}",
                problem="transfers go there, and the server has no such tier",
                remedy=f"it has {names}",
            )
        return self._tiers[name]
