"""Performs a policy's copies on the device and moves between the device and the host."""

from bisect import bisect_right
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor

from testbed.core.errors import PlugInError
from testbed.core.slots import DEVICE, HOST, Copy, Extent, Move, Ops
from testbed.kernels.engine.layout import Extents, Ints, Layout, Place, Pools
from testbed.kernels.engine.records import SwapTime
from testbed.kernels.launch.cache_ops import (
    MAX_GRID,
    bind_gather_blocks,
    bind_scatter_blocks,
    copy_blocks,
    gather_blocks,
    scatter_blocks,
)
from testbed.kernels.launch.swap import copies_of_runs, issue

Pairs = list[tuple[int, int]]


class Moves:
    """The operations in torch, at once.

    `live` lists the tables of all sequences on the device; only extents need them, to find a slot's owner.
    """

    def __init__(self, pools: Pools, layout: Layout, live: Callable[[], Iterable[list[Extent]]]) -> None:
        self.pools = pools
        self.layout = layout
        self.live = live

    def perform(self, ops: Ops) -> None:
        """Perform copies, then moves, in the policy's order; operations counted in `extra` move no bytes."""
        if ops.copies:
            self.copy(ops.copies)
        for move in ops.moves:
            if {move.source, move.target} != {DEVICE, HOST}:
                raise PlugInError(f"a move from {move.source} to {move.target}: tiers must be {DEVICE} and {HOST}")
            self.swap(self.block_pairs(move), move.target == HOST)

    def copy(self, copies: tuple[Copy, ...]) -> None:
        """Copy slots on the device, in order where one copy depends on another."""
        rows = self.pools.all_rows()
        for group in independent(copies):
            source, target = (torch.from_numpy(r).to(rows.device) for r in self.copied_rows(group))
            rows[:, target] = rows[:, source]

    def swap(self, pairs: Pairs, to_host: bool) -> None:
        """Swap pairs of blocks (on the device, on the host) out or in."""
        blocks, host = (f(self.layout.block_size) for f in (self.pools.blocks, self.pools.host_blocks))
        for on_device, on_host in pairs:
            if to_host:
                host[on_host] = blocks[:, on_device]
            else:
                blocks[:, on_device] = host[on_host]

    def swap_times(self) -> list[SwapTime]:
        """Every swap so far, after it has ended; none where they are not timed."""
        return []

    def wait(self) -> None:
        """Make later device work wait for all operations so far, also for swaps on another stream."""

    def settle(self) -> None:
        """Return when all operations so far have finished."""

    def block_pairs(self, move: Move) -> Pairs:
        """A move's copies as pairs of block ids (on the device, on the host)."""
        size, pairs = self.layout.block_size, []
        for src, dst, length in move.copies:
            if isinstance(self.layout, Extents) or src % size or dst % size or length % size:
                raise PlugInError(f"a move of {length} slots from {src} to {dst}: only whole blocks of {size} move")
            pairs += [((src + at) // size, (dst + at) // size) for at in range(0, length, size)]
        return pairs if move.target == HOST else [(device, host) for host, device in pairs]

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
        """The place of a slot; None for a slot of no extent."""
        if not isinstance(self.layout, Extents):
            return Place(np.empty(0, np.int64), 0)  # the slot alone determines a block's rows
        at = bisect_right(places, slot, key=lambda table: table[0].start) - 1
        if at < 0 or slot >= places[at][0].start + places[at][0].length:
            return None
        return self.layout.place(places[at], f"slot {slot}")


class CudaMoves(Moves):
    """Copies by the fused kernel; swaps on a separate stream: blocks are gathered on the GPU, one transfer per run.

    The compute stream waits only until blocks have been gathered, not until they have reached the host.
    """

    _stream: torch.cuda.Stream | None = None
    _needed: torch.cuda.Event | None = None

    def __init__(self, pools: Pools, layout: Layout, live: Callable[[], Iterable[list[Extent]]]) -> None:
        super().__init__(pools, layout, live)
        self._timed: list[tuple[SwapTime, torch.cuda.Event, torch.cuda.Event]] = []
        if not isinstance(layout, Extents):  # load the kernels now: the block is written as it is
            pool = pools.blocks(layout.block_size)
            staging = pool[:, :1].transpose(0, 1).contiguous()
            scatter_blocks(pool, staging, _ids([0], pool))
            gather_blocks(staging, pool, _ids([0], pool))

    def copy(self, copies: tuple[Copy, ...]) -> None:
        """Copy whole blocks in one launch for all layers, other runs of slots in torch."""
        self.wait()
        size = self.layout.block_size
        if isinstance(self.layout, Extents) or any(c.src % size or c.dst % size for c in copies):
            super().copy(copies)
            return
        pool = self.pools.blocks(size)
        for group in independent(whole(copies, size)):
            pairs = [(c.src // size + i, c.dst // size + i) for c in group for i in range(c.length // size)]
            for first in range(0, len(pairs), MAX_GRID):
                copy_blocks(pool, _ids(pairs[first : first + MAX_GRID], pool))

    def swap(self, pairs: Pairs, to_host: bool) -> None:
        """See Moves; blocks are gathered before the compute stream writes them again."""
        if self._stream is None:
            self._stream = torch.cuda.Stream()
        pool, host = (f(self.layout.block_size) for f in (self.pools.blocks, self.pools.host_blocks))
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for first in range(0, len(pairs), MAX_GRID):
                self._swap_part(pool, host, pairs[first : first + MAX_GRID], to_host)

    def _swap_part(self, pool: Tensor, host: Tensor, pairs: Pairs, to_host: bool) -> None:
        """Swap at most MAX_GRID blocks, on the current stream, and time what the device does."""
        staging = torch.empty((len(pairs), *host.shape[1:]), dtype=host.dtype, device=pool.device)
        ids, on_host = _ids([device for device, _ in pairs], pool), [host_id for _, host_id in pairs]
        copies = copies_of_runs(staging, host, on_host, to_host)
        move = bind_gather_blocks(staging, pool, ids) if to_host else bind_scatter_blocks(pool, staging, ids)
        stream = torch.cuda.current_stream()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        if to_host:
            move(stream.cuda_stream)
            self._needed = stream.record_event()
        issue(copies, stream.cuda_stream)
        if not to_host:
            move(stream.cuda_stream)
            self._needed = stream.record_event()
        end.record()
        swap = SwapTime("out" if to_host else "in", len(copies), staging.nbytes, 0.0)
        self._timed.append((swap, begin, end))

    def swap_times(self) -> list[SwapTime]:
        torch.cuda.synchronize()
        return [one._replace(seconds=begin.elapsed_time(end) / 1e3) for one, begin, end in self._timed]

    def wait(self) -> None:
        if self._needed is not None:
            torch.cuda.current_stream().wait_event(self._needed)
            self._needed = None

    def settle(self) -> None:
        """See Moves; transfers to the host may still run."""
        torch.cuda.current_stream().synchronize()


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


def _ids(values: list[int] | Pairs, pool: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.int32).pin_memory().to(pool.device, non_blocking=True)
