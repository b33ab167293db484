"""The same operations by kernels and copy engines: swaps and transfers in the background have streams of their own."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from testbed.core.slots import DEVICE, HOST, Copy, Extent, Move, Transfer
from testbed.kernels.engine.layout import Extents, Layout, Pools
from testbed.kernels.engine.pool_moves import Moves, Pairs, independent, whole
from testbed.kernels.engine.records import SwapTime
from testbed.kernels.launch.cache_ops import (
    MAX_GRID,
    bind_gather_blocks,
    bind_scatter_blocks,
    copies_of_runs,
    copy_blocks,
    gather_blocks,
    issue,
    scatter_blocks,
)


class Crossing(NamedTuple):
    """Events of a move on its stream: what reads or writes the device's blocks has ended, and everything has."""

    gathered: torch.cuda.Event
    ended: torch.cuda.Event


class CudaMoves(Moves):
    """Copies by the fused kernel; blocks that change tiers are gathered on the GPU, one transfer per run below.

    After a swap the compute stream waits only until blocks have been gathered, not until they have reached the host; it
    never waits for a transfer in the background. Loads and stores have a stream each, for a link carries both ways.
    """

    def __init__(self, pools: Pools, layout: Layout, live: Callable[[], Iterable[list[Extent]]]) -> None:
        super().__init__(pools, layout, live)
        self._needed: torch.cuda.Event | None = None
        self._pending: dict[int, torch.cuda.Event] = {}
        self._timed: list[tuple[SwapTime, torch.cuda.Event, torch.cuda.Event]] = []
        self._swaps, self._loads, self._stores = (torch.cuda.Stream() for _ in range(3))
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

    def swap(self, move: Move) -> None:
        """See Moves; blocks are gathered before the compute stream writes them again."""
        self._needed = self._cross(move, self._swaps).gathered

    def begin(self, transfers: Iterable[Transfer]) -> None:
        """See Moves; what a swap has just written below may be read."""
        for move_id, move in transfers:
            stream = self._loads if move.target == DEVICE else self._stores
            stream.wait_stream(self._swaps)
            self._pending[move_id] = self._cross(move, stream).ended

    @property
    def num_pending(self) -> int:
        return len(self._pending)

    def has_landed(self) -> bool:
        return any(ended.query() for ended in self._pending.values())

    def take_landed(self) -> list[int]:
        landed = [move_id for move_id, ended in self._pending.items() if ended.query()]
        for move_id in landed:
            del self._pending[move_id]
        return landed

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

    def _cross(self, move: Move, stream: torch.cuda.Stream) -> Crossing:
        """Move blocks on a stream, after the compute stream's work so far."""
        tier, pairs = self.block_pairs(move)
        size = self.layout.block_size
        pool, below = self.pools.blocks(size), self.pools.blocks_below(tier, size)
        out, into = ("out", "in") if tier == HOST else ("store", "load")
        way = into if move.target == DEVICE else out
        stream.wait_stream(torch.cuda.current_stream())
        if not pairs:
            return Crossing(stream.record_event(), stream.record_event())
        with torch.cuda.stream(stream):
            parts = [pairs[first : first + MAX_GRID] for first in range(0, len(pairs), MAX_GRID)]
            return [self._cross_part(way, pool, below, part, move.source == DEVICE) for part in parts][-1]

    def _cross_part(self, way: str, pool: Tensor, below: Tensor, pairs: Pairs, leaves: bool) -> Crossing:
        """Move at most MAX_GRID blocks, on the current stream, and time what the device does."""
        staging = torch.empty((len(pairs), *below.shape[1:]), dtype=below.dtype, device=pool.device)
        ids, there = _ids([on_device for on_device, _ in pairs], pool), [block for _, block in pairs]
        copies = copies_of_runs(staging, below, there, leaves)
        move = bind_gather_blocks(staging, pool, ids) if leaves else bind_scatter_blocks(pool, staging, ids)
        stream = torch.cuda.current_stream()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        if leaves:
            move(stream.cuda_stream)
            gathered = stream.record_event()
            issue(copies, stream.cuda_stream)
        else:
            issue(copies, stream.cuda_stream)
            move(stream.cuda_stream)
            gathered = stream.record_event()
        end.record()
        self._timed.append((SwapTime(way, len(copies), staging.nbytes, 0.0), begin, end))
        return Crossing(gathered, end)


def _ids(values: list[int] | Pairs, pool: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.int32).pin_memory().to(pool.device, non_blocking=True)
