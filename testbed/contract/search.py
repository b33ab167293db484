"""Run the contract against any policy and report what broke, with the shortest calls that break it."""

from collections.abc import Callable, Iterable
from random import Random

from testbed.contract.calls import Call
from testbed.contract.clauses import ClauseBroken
from testbed.contract.harness import Harness
from testbed.contract.histories import Histories
from testbed.contract.shrink import shortest
from testbed.memory.policy import MemoryPolicy, PoolSpec, host

MakePolicy = Callable[[PoolSpec], MemoryPolicy]

# Roomy; tight, and no multiple of a block size; smaller than a sequence may be, with a host that one soon fills.
POOLS = (PoolSpec(600, 256, host(300)), PoolSpec(131, 80, host(60)), PoolSpec(93, 128, host(32)))


def broken_by(make: MakePolicy, pool: PoolSpec, calls: list[Call]) -> ClauseBroken | None:
    """What the calls break. They are carried out twice, for clause 9."""
    harness = Harness(lambda: make(pool), pool.max_len)
    try:
        history = harness.run(calls)
        again = Harness(lambda: make(pool), pool.max_len, thorough=False).run(calls)
        if history == again:
            return None
        broken = ClauseBroken(9, "the same calls gave different answers or tables")
    except ClauseBroken as error:
        broken = error
    broken.calls = [str(pool), *harness.questions.log]
    return broken


def check_policy(
    make: MakePolicy,
    pools: Iterable[PoolSpec] = POOLS,
    max_examples: int = 200,
    max_calls: int = 40,
    *,
    shrink: bool = True,
) -> ClauseBroken | None:
    """The clause that a policy breaks in one of these pools, with the calls that break it; None if all hold.

    The calls are the shortest such sequence where `shrink`, else the first one found, which is faster. The same policy
    gets the same verdict every time.
    """
    for pool in pools:
        histories = Histories(make(pool), pool.max_len, Random(0))
        for _ in range(max_examples):
            calls = histories.draw(max_calls)
            broken = broken_by(make, pool, calls)
            if broken is not None:
                return shrunk(make, pool, calls, broken) if shrink else broken
    return None


def shrunk(make: MakePolicy, pool: PoolSpec, calls: list[Call], broken: ClauseBroken) -> ClauseBroken:
    """The same clause, broken by the shortest calls."""

    def breaks(fewer: list[Call]) -> bool:
        found = broken_by(make, pool, fewer)
        return found is not None and found.clause == broken.clause

    return broken_by(make, pool, shortest(calls, breaks)) or broken
