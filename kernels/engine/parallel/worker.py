"""The process of a worker: `python -m testbed.kernels.engine.parallel.worker FD`, where FD is its
end of a connection to rank 0.

Imports torch after its first sign of life.
"""

import os
import signal
import sys
from multiprocessing.connection import Connection
from typing import NamedTuple

from testbed.kernels.engine.architecture import Architecture
from testbed.kernels.engine.parallel.signs import ALONE, FAILED, HERE, LOADED, Failed, Signs


class Source(NamedTuple):
    """The folder of the weights, and the place that they are loaded to. arch: the whole model's;
    weights: random, or a folder; dtype: by its name in torch; device: cuda or cpu.
    """

    arch: Architecture
    weights: str = "random"
    seed: int = 0
    device: str = "cuda"
    dtype: str = "float16"


class Job(NamedTuple):
    """The description of a worker, sent to it first. port: of rank 0's store."""

    rank: int
    num_ranks: int
    port: int
    source: Source
    num_threads: int


def main(connection: Connection) -> int:
    """Work until the last message; the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 ends its workers
    signs = Signs(connection)
    try:
        work(connection, connection.recv(), signs)
    except EOFError:
        return ALONE
    except Exception as error:
        return _ended_by(error, signs)
    return 0


def work(connection: Connection, job: Job, signs: Signs) -> None:
    """Load the weights of the shard, then follow rank 0."""
    import torch

    from testbed.core.garbage import left_alone
    from testbed.kernels.engine.parallel.collectives import Distributed, reach_store
    from testbed.kernels.engine.parallel.follower import Follower
    from testbed.kernels.engine.parallel.ranks import Ranks
    from testbed.kernels.engine.parallel.shards import Shard, weights_of

    torch.set_num_threads(job.num_threads)
    source, on_gpu = job.source, job.source.device == "cuda"
    shard = Shard(source.arch, job.rank, job.num_ranks)
    signs.send(HERE)
    store = reach_store(job.port, job.num_ranks)
    collectives = Distributed(store, job.rank, job.num_ranks, on_gpu=on_gpu)
    where = source.device, getattr(torch, source.dtype)
    weights = weights_of(shard, source.weights, source.seed, *where)
    signs.send(LOADED)
    vocab_size = source.arch.spec.vocab_size
    ranks = Ranks(job.rank, shard.first_token, vocab_size, collectives)
    with left_alone():
        Follower(shard.local, weights, ranks).run(connection, signs.done)
    collectives.finish()


def _ended_by(error: Exception, signs: Signs) -> int:
    """The exit code of an error, which is sent to rank 0 unless it comes from another rank."""
    from testbed.kernels.engine.parallel.collectives import CollectiveError

    if isinstance(error, CollectiveError):
        return ALONE
    signs.send(Failed(f"{type(error).__name__}: {' '.join(str(error).split())}"))
    return FAILED


if __name__ == "__main__":
    code = main(Connection(int(sys.argv[1])))
    sys.stderr.flush()
    os._exit(code)  # CUDA graphs with collectives in them are not taken apart in order
