"""Performs what a policy orders: copies on the device, and moves between the device and the host."""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable

import numpy as np
import torch

from kernels.engine.layout import Extents, Ints, Layout, Place
from kernels.engine.pools import Pools
from testbed.core.errors import PlugInError
from testbed.core.slots import DEVICE, HOST, Copy, Extent, Move, Ops

Pairs = list[tuple[int, int]]


class Moves(ABC):
    """`live` lists the tables of all resident sequences; only extents need them, to tell whose a slot is."""

    def __init__(self, pools: Pools, layout: Layout, live: Callable[[], Iterable[list[Extent]]]) -> None:
        self.pools = pools
        self.layout = layout
        self.live = live

    def perform(self, ops: Ops) -> None:
        """Copies first, then moves, as the policy lists them; what is counted under other names moves no byte."""
        if ops.copies:
            self.copy(ops.copies)
        for move in ops.moves:
            if {move.source, move.target} != {DEVICE, HOST}:
                raise PlugInError(f"a move from {move.source} to {move.target}: the engine knows {DEVICE} and {HOST}")
            self.swap(self.block_pairs(move), move.target == HOST)

    def copy(self, copies: tuple[Copy, ...]) -> None:
        """Slots to slots of the device, in this order where one depends on another."""
        rows = self.pools.all_rows()
        for group in independent(copies):
            source, target = (torch.from_numpy(r).to(rows.device) for r in self.copied_rows(group))
            rows[:, target] = rows[:, source]

    @abstractmethod
    def swap(self, pairs: Pairs, to_host: bool) -> None:
        """Blocks (on the device, on the host), there or back."""

    @abstractmethod
    def wait(self) -> None:
        """What follows on the device sees all that was ordered; a swap on another stream is waited for."""

    @abstractmethod
    def settle(self) -> None:
        """Return when everything that was ordered has happened."""

    def block_pairs(self, move: Move) -> Pairs:
        """A move's copies as pairs of block ids (on the device, on the host)."""
        size, pairs = self.layout.block_size, []
        for src, dst, length in move.copies:
            if isinstance(self.layout, Extents) or src % size or dst % size or length % size:
                raise PlugInError(f"a move of {length} slots from {src} to {dst}: only whole blocks of {size} move")
            pairs += [((src + at) // size, (dst + at) // size) for at in range(0, length, size)]
        return pairs if move.target == HOST else [(device, host) for host, device in pairs]

    def copied_rows(self, copies: Iterable[Copy]) -> tuple[Ints, Ints]:
        """The rows that are read and those that are written; extents that nobody holds any more are left out."""
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
        """Where a slot lies; None for a slot of no extent."""
        if not isinstance(self.layout, Extents):
            return Place(np.empty(0, np.int64), 0)  # a block's rows follow from the slot alone
        at = bisect_right(places, slot, key=lambda table: table[0].start) - 1
        if at < 0 or slot >= places[at][0].start + places[at][0].length:
            return None
        return self.layout.place(places[at], f"slot {slot}")


class PlainMoves(Moves):
    """At once, in torch."""

    def swap(self, pairs: Pairs, to_host: bool) -> None:
        """See Moves."""
        blocks = self.pools.blocks(self.layout.block_size)
        host = self.pools.host_blocks(self.layout.block_size)
        for on_device, on_host in pairs:
            if to_host:
                host[on_host] = blocks[:, on_device].to(host.device)
            else:
                blocks[:, on_device] = host[on_host].to(blocks.device)

    def wait(self) -> None:
        """See Moves."""

    def settle(self) -> None:
        """See Moves."""


def independent(copies: tuple[Copy, ...]) -> list[list[Copy]]:
    """The copies in order, in groups in which nothing is written twice, or both read and written."""
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
