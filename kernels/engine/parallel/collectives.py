"""Collectives through torch.distributed: NCCL between GPUs, gloo between processes on a CPU."""

import os
import threading
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store, TCPStore

HOST = "127.0.0.1"
GLOO_LIMIT_S = 6.0  # a rank that waits longer for another gives up
# Its name in torch 2.13, and before.
GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
NCCL_LIMIT_S = 600.0  # of NCCL's own watch, which ends the process; ours is Watch


class CollectiveError(RuntimeError):
    """A collective failed, most often since another rank has."""


def open_store(num_ranks: int) -> TCPStore:
    """Rank 0's meeting place, on a free port."""
    return TCPStore(HOST, 0, num_ranks, is_master=True, wait_for_workers=False)


def reach_store(port: int, num_ranks: int) -> TCPStore:
    """The meeting place of rank 0."""
    return TCPStore(HOST, port, num_ranks, is_master=False)


class Distributed:
    """The collectives of this process, which is one of num_ranks. `close` ends them, `abort` from
    another thread while one is under way. On a GPU both end what runs, and then wait until no CUDA
    graph has a collective any more.
    """

    def __init__(self, store: Store, rank: int, num_ranks: int, *, on_gpu: bool) -> None:
        self._num_ranks = num_ranks
        self._on_gpu = on_gpu
        self._ending = threading.Lock()
        if on_gpu:
            os.environ["NCCL_NVLS_ENABLE"] = "0"  # multicast off
            os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"  # errors are for Watch to handle
            torch.cuda.set_device(rank)
        limit = timedelta(seconds=NCCL_LIMIT_S if on_gpu else GLOO_LIMIT_S)
        backend, size = "nccl" if on_gpu else "gloo", num_ranks
        # The ranks meet under a number that a start which failed has counted up in this process.
        dist.distributed_c10d._world.group_count = 0
        try:
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
        except RuntimeError as error:
            raise CollectiveError(str(error)) from error
        try:
            self._connect()
        except RuntimeError:
            self.close()
            raise

    def _connect(self) -> None:
        """NCCL connects at the first collective, which no graph may capture."""
        x = torch.zeros(1, device="cuda" if self._on_gpu else "cpu")
        self.add(x)
        self.gather(x)
        self.share(x)
        if self._on_gpu:
            torch.cuda.synchronize()

    def add(self, x: Tensor) -> None:
        try:
            dist.all_reduce(x)
        except (RuntimeError, ValueError) as error:
            raise CollectiveError(str(error)) from error

    def gather(self, x: Tensor) -> Tensor:
        parts = x.new_empty(self._num_ranks, *x.shape)
        try:
            GATHER(parts.flatten(0, 1), x)
        except (RuntimeError, ValueError) as error:
            raise CollectiveError(str(error)) from error
        return parts

    def share(self, x: Tensor) -> None:
        try:
            dist.broadcast(x, src=0)
        except (RuntimeError, ValueError) as error:
            raise CollectiveError(str(error)) from error

    def finish(self) -> None:
        if self._on_gpu:
            torch.cuda.synchronize()

    def abort(self) -> None:
        """End NCCL's collectives that are under way; gloo's end with the other processes."""
        if self._on_gpu:
            self.close()

    def close(self) -> None:
        """End the group: NCCL's at once, which does not wait for the other ranks."""
        with self._ending:
            if not dist.is_initialized():
                return
            if self._on_gpu:
                dist.distributed_c10d._abort_process_group()
            else:
                dist.destroy_process_group()
