"""Run the contract against any policy and report what broke, with the shortest calls that break it."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from random import Random
from typing import Any, TypeVar

from testbed.contract.clauses import ClauseBroken
from testbed.contract.harness import Harness
from testbed.contract.histories import Call, Histories
from testbed.core.layers import KvGroup
from testbed.memory.policy import MemoryPolicy, PoolSpec, Tier, host

MAX_TRIES = 2000
AT_LEAST_ONE = {"prompt_len", "output_len", "num_tokens", "num_seqs"}
C = TypeVar("C", bound=Any)
MakePolicy = Callable[[PoolSpec], MemoryPolicy]

# Roomy; tight, and no multiple of a block size; smaller than a sequence may be, with a host that one soon fills. Below
# are two more tiers, for policies that use them. Half of the layers have a window, for policies that know groups.
GROUPS = (KvGroup("full", 1, 1), KvGroup("window", 1, 1, 10))
POOLS = tuple(
    PoolSpec(
        num_slots,
        max_len,
        (*host(host_slots), Tier("dram", 2 * host_slots), Tier("nvme", 4 * host_slots)),
        num_layers=2,
        groups=GROUPS,
    )
    for num_slots, max_len, host_slots in ((600, 256, 300), (131, 80, 60), (93, 128, 32))
)


def broken_by(make: MakePolicy, pool: PoolSpec, calls: list[Call], *, twice: bool = True) -> ClauseBroken | None:
    """What the calls break. They are carried out `twice` for clause 9, which nothing else needs."""
    harness = Harness(lambda: make(pool), pool)
    try:
        history = harness.run(calls)
        if not twice or history == Harness(lambda: make(pool), pool, thorough=False).run(calls):
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
    """The same clause, broken by the shortest calls that so many tries find."""

    def fails(candidate: list[Call]) -> bool:
        nonlocal broken
        found = broken_by(make, pool, candidate, twice=broken.clause == 9)
        if found is None or found.clause != broken.clause:
            return False
        broken = found
        return True

    shortest(calls, fails)
    return broken


def shortest(
    calls: list[C],
    fails: Callable[[list[C]], bool],
    fewer: Callable[[list[C]], Iterator[list[C]]] | None = None,
    max_tries: int = MAX_TRIES,
) -> list[C]:
    """The shortest calls that so many tries find and that still fail; `fewer` yields candidates a step smaller."""
    step = fewer or smaller
    candidates = step(calls)
    for _ in range(max_tries):
        candidate = next(candidates, None)
        if candidate is None:
            break
        if fails(candidate):
            calls, candidates = candidate, step(candidate)
    return calls


def without_runs(items: list[C]) -> Iterator[list[C]]:
    size = len(items)
    while size := size // 2:
        for start in range(len(items) - size, -1, -size):
            yield items[:start] + items[start + size :]


def smaller(calls: list[C]) -> Iterator[list[C]]:
    """The same calls but for some, the longest runs first; then with one number smaller."""
    yield from without_runs(calls)
    for i, call in enumerate(calls):
        for field in fields(call):
            value, least = getattr(call, field.name), int(field.name in AT_LEAST_ONE)
            for less in dict.fromkeys((least, value // 2, value - 1)) if isinstance(value, int) else ():
                if least <= less < value:
                    changed: dict[str, Any] = {field.name: type(value)(less)}
                    yield [*calls[:i], replace(call, **changed), *calls[i + 1 :]]
