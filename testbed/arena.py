"""The arena for programs that search a policy: `testbed.arena.score`."""

from typing import Any

from testbed.run.result import front_end
from testbed.study.scores import Score as Score


def score(policy: Any, *, suite: str = "quick", rules: str = "vllm-v1") -> Score:
    """The score of a policy on the workloads of a suite, beside LRU; float(score) is smaller for a
    better one.

    It is deterministic, runs in this process with the suite's first seed and keeps nothing but the
    LRU runs of the suite, which later calls use. `testbed arena` has all seeds, and intervals.
    Raises InputError for what is no policy, and for a suite or system that does not exist.

    Args:
        policy: a class of eviction orders, memory policies or schedulers, a pair of class and
            parameters, or a partial of a class.
        suite: quick, full or sprint.
        rules: whose scheduling, a name of `testbed list system`.
    """
    return front_end().score(policy, suite, rules)
