"""Copies by the fused kernel, and swaps on a stream of their own: gathered on the GPU, one transfer for each run."""

import torch
from torch import Tensor

from kernels.engine.layout import Extents
from kernels.engine.pool_moves import Moves, Pairs, independent
from kernels.launch.cache_ops import MAX_GRID, copy_blocks, gather_blocks, scatter_blocks
from kernels.launch.swap import runs
from testbed.core.slots import Copy


class CudaMoves(Moves):
    """What computes waits on the GPU for what it needs: for blocks to be gathered, not for them to reach the host."""

    _stream: torch.cuda.Stream | None = None
    _needed: torch.cuda.Event | None = None

    def copy(self, copies: tuple[Copy, ...]) -> None:
        """Whole blocks in one launch for all layers; other runs of slots plainly."""
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
        """See Moves; blocks that are written later on the compute stream are gathered before that."""
        if self._stream is None:
            self._stream = torch.cuda.Stream()
        pool, host = (f(self.layout.block_size) for f in (self.pools.blocks, self.pools.host_blocks))
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for first in range(0, len(pairs), MAX_GRID):
                part = pairs[first : first + MAX_GRID]
                self._out(pool, host, part) if to_host else self._in(pool, host, part)

    def wait(self) -> None:
        """See Moves."""
        if self._needed is not None:
            torch.cuda.current_stream().wait_event(self._needed)
            self._needed = None

    def settle(self) -> None:
        """See Moves; blocks on their way to the host may still travel."""
        torch.cuda.current_stream().synchronize()

    def _out(self, pool: Tensor, host: Tensor, pairs: Pairs) -> None:
        staging = torch.empty((len(pairs), *host.shape[1:]), dtype=host.dtype, device=pool.device)
        gather_blocks(staging, pool, _ids([device for device, _ in pairs], pool))
        self._needed = torch.cuda.current_stream().record_event()
        for at, first, count in runs([on_host for _, on_host in pairs]):
            host[first : first + count].copy_(staging[at : at + count], non_blocking=True)

    def _in(self, pool: Tensor, host: Tensor, pairs: Pairs) -> None:
        staging = torch.empty((len(pairs), *host.shape[1:]), dtype=host.dtype, device=pool.device)
        for at, first, count in runs([on_host for _, on_host in pairs]):
            staging[at : at + count].copy_(host[first : first + count], non_blocking=True)
        scatter_blocks(pool, staging, _ids([device for device, _ in pairs], pool))
        self._needed = torch.cuda.current_stream().record_event()


def whole(copies: tuple[Copy, ...], size: int) -> tuple[Copy, ...]:
    """Copies from block starts, rounded up to whole blocks: what lies behind them in a target is nobody's yet."""
    return tuple(Copy(c.src, c.dst, -(-c.length // size) * size) for c in copies)


def _ids(values: list[int] | Pairs, pool: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.int32).pin_memory().to(pool.device, non_blocking=True)
