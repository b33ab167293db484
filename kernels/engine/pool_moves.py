"""Performs a policy's copies on the device, and its moves between tiers: in torch, and by
kernels.
"""

from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor

from testbed.core.errors import PlugInError
from testbed.core.slots import DEVICE, HOST, Copy, Extent, Move, Ops, Transfer, ceil_div
from testbed.kernels.engine.layout import Blocks, Extents, Ints, Pools
from testbed.kernels.engine.records import SwapTime
from testbed.kernels.launch import cache_ops
from testbed.kernels.launch.cache_ops import (
    MAX_GRID,
    bind_move_blocks,
    bind_stage_blocks,
    bind_unload_blocks,
)
from testbed.sched.state import SchedulerState

LiveTables = Callable[[], list[list[Extent]]]  # of the sequences on the device
Pairs = list[tuple[int, int]]
Ends = tuple[
    torch.cuda.Event, torch.cuda.Event
]  # of work on the device's blocks, and of the whole move
ByPart = Callable[[Tensor, Tensor, Tensor, str], torch.cuda.Event | None]


class Moves:
    """The operations at once; a transfer in the background has landed when the next call asks.

    Only extents need the tables of the sequences on the device, to find a slot's owner.
    """

    def __init__(self, pools: Pools, layout: Blocks, live: LiveTables) -> None:
        self.pools = pools
        self.layout = layout
        self.live = live
        self.pending: dict[
            int, torch.cuda.Event | None
        ] = {}  # ends of transfers; None if it is over
        self._timed: list[tuple[SwapTime, torch.cuda.Event, torch.cuda.Event]] = []

    def perform(self, ops: Ops) -> None:
        """Perform copies, then moves, in the policy's order; operations counted in `extra` move no
        bytes.
        """
        if ops.copies:
            self.copy(ops.copies)
        for move in ops.moves:
            self.swap(move)

    def begin(self, transfers: Iterable[Transfer]) -> None:
        """Begin transfers in the background, after all operations so far."""
        for move_id, move in transfers:
            self.swap(move)
            self.pending[move_id] = None

    def ended(self) -> list[int]:
        """The pending transfers that have ended."""
        return [move_id for move_id, end in self.pending.items() if end is None or end.query()]

    def land(self, move_id: int) -> None:
        """Let all later work use what a transfer that has begun reads and writes: it has ended, or
        is waited for.
        """
        end = self.pending.pop(move_id)
        if end is not None:
            torch.cuda.current_stream().wait_event(end)

    def flush(self) -> None:
        """No forward pass will follow what was performed and begun."""

    def copy(self, copies: tuple[Copy, ...]) -> None:
        """Copy slots on the device, in order if one copy depends on another."""
        rows = self.pools.rows()
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
        """Every swap and transfer so far, after it has ended; none if they are not timed."""
        if self._timed:
            torch.cuda.synchronize()
        return [
            swap._replace(seconds=begin.elapsed_time(end) / 1e3) for swap, begin, end in self._timed
        ]

    def block_pairs(self, move: Move) -> tuple[str, Pairs]:
        """The tier below that a move reads or writes, and its copies as pairs of block ids (on the
        device, there).
        """
        tier, size, pairs = (
            move.source if move.target == DEVICE else move.target,
            self.layout.block_size,
            [],
        )
        if DEVICE not in (move.source, move.target) or tier not in self.pools.below:
            tiers = ", ".join(self.pools.below)
            raise PlugInError(
                f"a move from {move.source} to {move.target}: one must be {DEVICE}, the other in "
                f"{tiers}"
            )
        for src, dst, length in move.copies:
            if isinstance(self.layout, Extents) or src % size or dst % size or length % size:
                raise PlugInError(
                    f"a move of {length} slots from {src} to {dst}: only whole blocks of {size} "
                    "move"
                )
            pairs += [((src + at) // size, (dst + at) // size) for at in range(0, length, size)]
        return tier, pairs if move.source == DEVICE else [
            (device, there) for there, device in pairs
        ]

    def copied_rows(self, copies: Iterable[Copy]) -> list[Ints]:
        """The rows that the copies read, and those that they write; extents without an owner are
        left out.
        """
        rows = list[Ints](), list[Ints]()
        live = self.live() if isinstance(self.layout, Extents) else []
        for src, dst, length in copies:
            run = np.arange(length)
            read, written = (self.layout.rows_of_slots(first + run, live) for first in (src, dst))
            if len(read) == len(written):
                rows[0].append(read)
                rows[1].append(written)
        return [
            np.concatenate([np.empty(0, np.int64), *(r.ravel() for r in side)]) for side in rows
        ]


def live_tables(state: SchedulerState) -> LiveTables:
    """The tables of the sequences that a scheduler has on the device."""
    return lambda: [
        state.policy.table(seq) for group in state.running.values() for seq in group.resident
    ]


def independent(copies: tuple[Copy, ...]) -> list[list[Copy]]:
    """The copies in order, in groups in which no slot is written twice, or both read and
    written.
    """
    groups: list[list[Copy]] = []
    read: set[int] = set()
    written: set[int] = set()
    for copy in copies:
        source, target = (
            range(copy.src, copy.src + copy.length),
            range(copy.dst, copy.dst + copy.length),
        )
        if not groups or not written.isdisjoint(source) or not (read | written).isdisjoint(target):
            groups.append([])
            read, written = set(), set()
        groups[-1].append(copy)
        read.update(source)
        written.update(target)
    return groups


class CudaMoves(Moves):
    """Copies by the fused kernel; blocks that change tiers by a kernel of few thread blocks, which
    reads and writes the host's memory while others compute.

    A swap out is gathered on the GPU first, so that the compute stream waits only until that is
    done, not until the blocks have reached the host; it never waits for a transfer in the
    background. Loads and stores have a stream each, for a link carries both ways.
    """

    def __init__(self, pools: Pools, layout: Blocks, live: LiveTables) -> None:
        super().__init__(pools, layout, live)
        self._swaps, self._loads, self._stores = (torch.cuda.Stream() for _ in range(3))
        if not isinstance(layout, Extents):  # load the kernels now: no block is moved
            self._load_kernels(pools.blocks(layout.block_size), pools)

    def _load_kernels(self, pool: Tensor, pools: Pools) -> None:
        none = torch.empty((0, 2), dtype=torch.int32, device=pool.device)
        staging = pool.new_empty((0, pool.shape[0], *pool.shape[2:]))
        bind_stage_blocks(pool, staging, none.flatten(), True)
        for tier, blocks in pools.below.items():
            if len(blocks):
                below = pools.blocks_below(tier, self.layout.block_size)
                bind_move_blocks(pool, below, none, True)

    def copy(self, copies: tuple[Copy, ...]) -> None:
        """Copy runs from block starts in one launch for all layers, other runs of slots in torch.

        The blocks are copied whole: the rest of a run's last target block has no tokens yet.
        """
        size = self.layout.block_size
        if isinstance(self.layout, Extents) or any(c.src % size or c.dst % size for c in copies):
            super().copy(copies)
            return
        pool = self.pools.blocks(size)
        for group in independent(copies):
            pairs = [
                (c.src // size + i, c.dst // size + i)
                for c in group
                for i in range(ceil_div(c.length, size))
            ]
            for first in range(0, len(pairs), MAX_GRID):
                cache_ops.copy_blocks(pool, _ids(pairs[first : first + MAX_GRID], pool))

    def swap(self, move: Move) -> None:
        """See Moves; blocks are gathered, or have arrived, before the compute stream goes on."""
        gathered, _ = self._cross(move, self._swaps, self._swap_part)
        torch.cuda.current_stream().wait_event(gathered)

    def begin(self, transfers: Iterable[Transfer]) -> None:
        """See Moves; what a swap has just written below may be read."""
        for move_id, move in transfers:
            stream = self._loads if move.target == DEVICE else self._stores
            stream.wait_stream(self._swaps)
            _, self.pending[move_id] = self._cross(move, stream, self._move_part)

    def _cross(self, move: Move, stream: torch.cuda.Stream, by_part: ByPart) -> Ends:
        """Move blocks on a stream, after the compute stream's work so far."""
        tier, pairs = self.block_pairs(move)
        size = self.layout.block_size
        pool, below = self.pools.blocks(size), self.pools.blocks_below(tier, size)
        out, into = ("out", "in") if tier == HOST else ("store", "load")
        way = into if move.target == DEVICE else out
        stream.wait_stream(torch.cuda.current_stream())
        if not pairs:
            return stream.record_event(), stream.record_event()
        with torch.cuda.stream(stream):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            parts = [pairs[first : first + MAX_GRID] for first in range(0, len(pairs), MAX_GRID)]
            done = [by_part(pool, below, _ids(part, pool), way) for part in parts][-1]
            end.record()
        num_bytes = len(pairs) * below[0].nbytes
        swap = SwapTime(way, len(pairs) * len(pool), num_bytes, 0.0)
        self._timed.append((swap, begin, end))
        return done or end, end

    def _swap_part(
        self, pool: Tensor, below: Tensor, pairs: Tensor, way: str
    ) -> torch.cuda.Event | None:
        """Swap at most MAX_GRID blocks on the current stream; the event after which the device's
        may be written, None: all are moved by then.
        """
        if way == "in":
            self._move_part(pool, below, pairs, way)
            return None
        stream = torch.cuda.current_stream().cuda_stream
        staging = torch.empty((len(pairs), *below.shape[1:]), dtype=pool.dtype, device=pool.device)
        bind_stage_blocks(pool, staging, pairs[:, 0].contiguous(), True)(stream)
        gathered: torch.cuda.Event = torch.cuda.current_stream().record_event()
        bind_unload_blocks(staging, below, pairs)(stream)
        return gathered

    def _move_part(self, pool: Tensor, below: Tensor, pairs: Tensor, way: str) -> None:
        """Move at most MAX_GRID blocks on the current stream."""
        leaves = way in ("out", "store")
        bind_move_blocks(pool, below, pairs, leaves)(torch.cuda.current_stream().cuda_stream)


def _ids(values: list[int] | Pairs, pool: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.int32).pin_memory().to(pool.device, non_blocking=True)
