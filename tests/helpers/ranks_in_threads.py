"""Tensor parallel ranks as threads of this process, which meet at a barrier."""

import threading
from multiprocessing import Pipe

import torch

from testbed.kernels.engine.parallel.follower import Follower
from testbed.kernels.engine.parallel.leader import Guard, Leader
from testbed.kernels.engine.parallel.ranks import Ranks

TIMEOUT_S = 60


class Meeting:
    """The ranks' parts of each collective."""

    def __init__(self, num_ranks):
        self.brought = [None] * num_ranks
        self.barrier = threading.Barrier(num_ranks, timeout=TIMEOUT_S)


class InThread:
    """One rank's collectives."""

    def __init__(self, meeting, rank):
        self.meeting = meeting
        self.rank = rank

    def meet(self, x):
        """Copies of what all ranks bring."""
        self.meeting.brought[self.rank] = x.clone()
        self.meeting.barrier.wait()
        brought = list(self.meeting.brought)
        self.meeting.barrier.wait()
        return brought

    def add(self, x):
        x.copy_(torch.stack(self.meet(x)).sum(0))

    def gather(self, x):
        return torch.stack(self.meet(x))

    def share(self, x):
        x.copy_(self.meet(x)[0])

    def finish(self):
        """Nothing is under way."""


def ranks_of(shards):
    """A rank of each shard."""
    meeting = Meeting(len(shards))
    return [
        Ranks(s.rank, s.first_token, s.arch.spec.vocab_size, InThread(meeting, s.rank))
        for s in shards
    ]


class Threads(Guard):
    """The followers' threads. A follower that fails breaks the barrier, so that no rank waits."""

    def __init__(self, followers, barrier):
        self.followers = followers
        self.barrier = barrier
        self.threads = []

    def start(self, connections):
        for follower, connection in zip(self.followers, connections, strict=True):
            thread = threading.Thread(target=self.run, args=(follower, connection), daemon=True)
            thread.start()
            self.threads.append(thread)

    def run(self, follower, connection):
        try:
            follower.run(connection)
        except BaseException:
            self.barrier.abort()
            raise

    def end(self):
        for thread in self.threads:
            thread.join(TIMEOUT_S)


def led_by_threads(shards, weights):
    """The leader of followers with these weights, one for each shard but the first."""
    own, *others = ranks_of(shards)
    local = shards[0].local
    followers = [Follower(local, w, ranks) for w, ranks in zip(weights, others, strict=True)]
    pipes = [Pipe() for _ in followers]
    threads = Threads(followers, own.collectives.meeting.barrier)
    threads.start([theirs for _, theirs in pipes])
    leader = Leader([ours for ours, _ in pipes], own, threads)
    leader.followers = followers
    return leader
