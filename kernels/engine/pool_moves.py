"""Performs a policy's copies on the device, and moves between the device and the tiers below, in torch."""

from bisect import bisect_right
from collections.abc import Callable, Iterable

import numpy as np
import torch

from testbed.core.errors import PlugInError
from testbed.core.slots import DEVICE, Copy, Extent, Move, Ops, Transfer
from testbed.kernels.engine.layout import Extents, Ints, Layout, Place, Pools
from testbed.kernels.engine.records import SwapTime

Pairs = list[tuple[int, int]]


class Moves:
    """The operations at once; a transfer in the background has landed when the next one of its calls asks.

    `live` lists the tables of all sequences on the device; only extents need them, to find a slot's owner.
    """

    def __init__(self, pools: Pools, layout: Layout, live: Callable[[], Iterable[list[Extent]]]) -> None:
        self.pools = pools
        self.layout = layout
        self.live = live
        self._landed: list[int] = []

    def perform(self, ops: Ops) -> None:
        """Perform copies, then moves, in the policy's order; operations counted in `extra` move no bytes."""
        if ops.copies:
            self.copy(ops.copies)
        for move in ops.moves:
            self.swap(move)

    def begin(self, transfers: Iterable[Transfer]) -> None:
        """Begin transfers in the background, after all operations so far."""
        for move_id, move in transfers:
            self.swap(move)
            self._landed.append(move_id)

    @property
    def num_pending(self) -> int:
        """Transfers that `take_landed` has not returned yet."""
        return len(self._landed)

    def has_landed(self) -> bool:
        """Whether one of these has ended."""
        return bool(self._landed)

    def take_landed(self) -> list[int]:
        """The transfers that have ended since the last call."""
        landed, self._landed = self._landed, []
        return landed

    def copy(self, copies: tuple[Copy, ...]) -> None:
        """Copy slots on the device, in order where one copy depends on another."""
        rows = self.pools.all_rows()
        for group in independent(copies):
            source, target = (torch.from_numpy(r).to(rows.device) for r in self.copied_rows(group))
            rows[:, target] = rows[:, source]

    def swap(self, move: Move) -> None:
        """Swap blocks between the device and a tier."""
        size = self.layout.block_size
        tier, pairs = self.block_pairs(move)
        blocks, below = self.pools.blocks(size), self.pools.blocks_below(tier, size)
        for on_device, there in pairs:
            if move.source == DEVICE:
                below[there] = blocks[:, on_device]
            else:
                blocks[:, on_device] = below[there]

    def swap_times(self) -> list[SwapTime]:
        """Every swap and transfer so far, after it has ended; none where they are not timed."""
        return []

    def wait(self) -> None:
        """Make later device work wait for all operations so far, also for swaps on another stream."""

    def settle(self) -> None:
        """Return when all operations so far have finished."""

    def block_pairs(self, move: Move) -> tuple[str, Pairs]:
        """The tier below that a move reads or writes, and its copies as pairs of block ids (on the device, there)."""
        tier, size, pairs = move.source if move.target == DEVICE else move.target, self.layout.block_size, []
        if DEVICE not in (move.source, move.target) or tier not in self.pools.below:
            known = ", ".join(self.pools.below)
            raise PlugInError(f"a move from {move.source} to {move.target}: one must be {DEVICE}, the other in {known}")
        for src, dst, length in move.copies:
            if isinstance(self.layout, Extents) or src % size or dst % size or length % size:
                raise PlugInError(f"a move of {length} slots from {src} to {dst}: only whole blocks of {size} move")
            pairs += [((src + at) // size, (dst + at) // size) for at in range(0, length, size)]
        return tier, pairs if move.source == DEVICE else [(device, there) for there, device in pairs]

    def copied_rows(self, copies: Iterable[Copy]) -> tuple[Ints, Ints]:
        """The rows that the copies read and write; extents without an owner are left out."""
        places = sorted(self.live()) if isinstance(self.layout, Extents) else []
        rows: list[tuple[Ints, Ints]] = []
        for src, dst, length in copies:
            source, target = self._place(places, src), self._place(places, dst)
            if source is not None and target is not None:
                run = np.arange(length)
                rows.append((self.layout.rows(source, src + run), self.layout.rows(target, dst + run)))
        if not rows:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        return np.concatenate([r.ravel() for r, _ in rows]), np.concatenate([w.ravel() for _, w in rows])

    def _place(self, places: list[list[Extent]], slot: int) -> Place | None:
        if not isinstance(self.layout, Extents):
            return Place(np.empty(0, np.int64), 0)  # the slot alone determines a block's rows
        at = bisect_right(places, slot, key=lambda table: table[0].start) - 1
        if at < 0 or slot >= places[at][0].start + places[at][0].length:
            return None
        return self.layout.place(places[at], f"slot {slot}")


def independent(copies: tuple[Copy, ...]) -> list[list[Copy]]:
    """The copies in order, in groups in which no slot is written twice, or both read and written."""
    groups: list[list[Copy]] = []
    read: set[int] = set()
    written: set[int] = set()
    for copy in copies:
        source, target = range(copy.src, copy.src + copy.length), range(copy.dst, copy.dst + copy.length)
        if not groups or not written.isdisjoint(source) or not (read | written).isdisjoint(target):
            groups.append([])
            read, written = set(), set()
        groups[-1].append(copy)
        read.update(source)
        written.update(target)
    return groups


def whole(copies: tuple[Copy, ...], size: int) -> tuple[Copy, ...]:
    """Copies from block starts, rounded up to whole blocks: the rest of a target block has no tokens yet."""
    return tuple(Copy(c.src, c.dst, -(-c.length // size) * size) for c in copies)
