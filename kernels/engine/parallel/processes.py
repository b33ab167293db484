"""Starts the workers of an engine: one process for each GPU but the first, which is rank 0's."""

import atexit
import subprocess
import sys
from contextlib import ExitStack, suppress
from multiprocessing import Pipe
from typing import NamedTuple

import torch

from testbed.core.errors import InputError
from testbed.kernels.engine.architecture import Architecture
from testbed.kernels.engine.parallel.collectives import Distributed, open_store
from testbed.kernels.engine.parallel.leader import Leader
from testbed.kernels.engine.parallel.ranks import Ranks
from testbed.kernels.engine.parallel.shards import Shard, check_divides, weights_of
from testbed.kernels.engine.parallel.signs import HERE, LOADED
from testbed.kernels.engine.parallel.watch import Watch, Worker, WorkerError
from testbed.kernels.engine.parallel.worker import Job, Source
from testbed.kernels.engine.weights import Weights

MODULE = "testbed.kernels.engine.parallel.worker"


class Started(NamedTuple):
    """Rank 0's part of a model whose workers have theirs."""

    arch: Architecture
    weights: Weights
    lead: "LeaderOfProcesses"


class LeaderOfProcesses(Leader):
    """Leads processes, and ends what it has begun: them, and the collectives of this process."""

    def __init__(self, watch: Watch, ranks: Ranks, collectives: Distributed) -> None:
        super().__init__([worker.connection for worker in watch.workers], ranks, watch)
        self._collectives = collectives
        self._is_closed = False
        atexit.register(self._end_quietly)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        atexit.unregister(self._end_quietly)
        try:
            super().close()
        finally:
            self._captures.release()
            self._collectives.close()

    def _end_quietly(self) -> None:
        """Ends the workers at Python's exit if the engine was not closed; the caller has seen a
        failure.
        """
        with suppress(WorkerError):
            self.close()


def check_parallel(source: Source, num_ranks: int) -> None:
    """Raise InputError for what num_ranks workers cannot divide, or have no GPU for."""
    check_divides(source.arch.spec, num_ranks)
    if source.device not in ("cpu", "cuda"):
        raise InputError(
            key="engine.device",
            value=source.device,
            problem=f"each of server.num_gpus={num_ranks} workers has its own",
            remedy="give cuda or cpu",
        )
    num_present = torch.cuda.device_count()
    if source.device == "cuda" and num_present < num_ranks:
        raise InputError(
            key="server.num_gpus",
            value=num_ranks,
            problem=f"this machine has {num_present} GPUs",
            remedy="give as many at most, or simulate",
        )


def start(source: Source, num_ranks: int) -> Started:
    """Start the workers, connect the ranks and load the weights of each."""
    check_parallel(source, num_ranks)
    store, on_gpu = open_store(num_ranks), source.device == "cuda"
    threads = max(1, torch.get_num_threads() // num_ranks)
    jobs = [Job(rank, num_ranks, store.port, source, threads) for rank in range(1, num_ranks)]
    watch = Watch(
        [_process(job) for job in jobs],
        limits_waits=on_gpu,
    )
    with ExitStack() as undo:
        undo.callback(watch.kill)
        watch.wait_until(HERE.stage)
        collectives = watch.call(lambda: Distributed(store, 0, num_ranks, on_gpu=on_gpu))
        undo.callback(collectives.close)
        watch.abort = collectives.abort
        shard = Shard(source.arch, 0, num_ranks)
        where = source.device, getattr(torch, source.dtype)
        weights = weights_of(shard, source.weights, source.seed, *where)
        watch.wait_until(LOADED.stage)
        undo.pop_all()
    ranks = Ranks(0, shard.first_token, source.arch.spec.vocab_size, collectives)
    return Started(shard.local, weights, LeaderOfProcesses(watch, ranks, collectives))


def _process(job: Job) -> Worker:
    """Start a worker's process; it is no child of multiprocessing's, since a server's engine is one
    and may have none.
    """
    ours, theirs = Pipe()
    words = [sys.executable, "-m", MODULE, str(theirs.fileno())]
    process = subprocess.Popen(words, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    theirs.close()
    ours.send(job)
    return Worker(job.rank, process, ours)
