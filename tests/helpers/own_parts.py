"""Parts of a user's that cannot be used: each is wrong in one way that a run must name."""

import numpy as np
from example_policy import Slabs

from testbed.sched.mixed import MixedPrefill


def nothing(pool):
    """Stands where a policy's class must stand, and makes none."""


class LeavesLate(Slabs):
    """A policy that ends the process at its first admission."""

    def admit(self, *_):
        raise SystemExit(0)


class NeedsALargePool(Slabs):
    def __init__(self, pool):
        raise ValueError("too small")


class Rowless:
    """A trace that gives nothing."""

    def rows(self, *_):
        pass


class Fractions:
    """Arrivals at fractions of picoseconds."""

    def times_ps(self, rows, seed):
        return np.array([0.0, 1.5])


class Text:
    """Arrivals at a text."""

    def times_ps(self, rows, seed):
        return "1"


class Beyond:
    """Arrivals at a time that 64 bits with a sign do not hold."""

    def times_ps(self, rows, seed):
        return np.array([10**19], dtype=np.uint64)


class Replayed:
    """Replayed arrivals with one time for any number of rows."""

    replays = True

    def times_ps(self, rows, seed):
        return np.array([1])


class Bare(MixedPrefill):
    """A scheduler that takes one limit less than the configuration gives."""

    def __init__(self, policy, preemption, max_num_batched_tokens):
        super().__init__(
            policy, preemption, max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=7
        )
