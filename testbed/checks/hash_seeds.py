"""Clause 9 across processes: what a plug-in does may not follow the order of a set of strings,
which Python draws anew for each process.

Two processes with different hash seeds carry out the same examples, and must get the same answers.
"""

import hashlib
import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from itertools import islice
from random import Random
from typing import Any, NamedTuple

from testbed.checks.contract import order_contract
from testbed.checks.contract.clauses import ClauseBroken
from testbed.checks.contract.costs import works
from testbed.checks.contract.search import Harness, histories_of, shown_pool
from testbed.checks.fast_and_slow import (
    GAPS_PS,
    LIMITS,
    MODEL,
    SERVER,
    Case,
    MakeRule,
    described,
    workload,
)
from testbed.checks.handover_checks import sendings
from testbed.checks.plug_in_kinds import kind_of
from testbed.checks.router_checks import WatchedRouter, decisions_of, stories
from testbed.core.errors import InputError
from testbed.cost.model import CostModel
from testbed.fleet.handovers.rule import HandoverRule
from testbed.fleet.routers.router import Router
from testbed.memory.capabilities import capabilities_of
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec
from testbed.memory.prefix_cache.eviction.order import EvictionOrder
from testbed.run.parts import locate
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import PreemptionRule, Recompute
from testbed.sched.scheduler import Scheduler

SEEDS = ("1", "2")
NUM_EXAMPLES = 20
Answers = list[tuple[list[str], str]]  # calls, and a digest of what they gave
ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of an object, in its representation


class Example(NamedTuple):
    """calls: what a plug-in is called with, in words. ask: makes these calls and returns all
    answers.
    """

    calls: list[str]
    ask: Callable[[], object]


def importable_name(target: Any) -> str | None:
    """The dotted name by which another process finds this class or function; None if there is
    none.
    """
    module = getattr(target, "__module__", "")
    if module == "__main__":  # the other process has its own
        return None
    name = f"{module}.{getattr(target, '__qualname__', '')}"
    try:
        located = locate(name, "plug-in")
    except InputError:
        return None
    return name if located is target else None


def follows_hashes(
    target: Any, pools: Sequence[PoolSpec], parameters: Mapping[str, Any]
) -> ClauseBroken | None:
    """The first example whose answers differ between two hash seeds; None if there is none, or if
    another process cannot make the plug-in.
    """
    name = importable_name(target)
    try:
        question = pickle.dumps((name, pools, dict(parameters)))
    except (pickle.PicklingError, AttributeError, TypeError):  # such as a lambda
        return None
    if name is None:
        return None
    processes = [_process_of(seed) for seed in SEEDS]
    answers = [_answers(name, process, question) for process in processes]
    for (calls, first_answer), (_, second_answer) in zip(*answers, strict=True):
        if first_answer != second_answer:
            seeds = " and ".join(SEEDS)
            broken = ClauseBroken(
                9, f"the same calls give other answers under PYTHONHASHSEED {seeds} (sort the set)"
            )
            broken.calls = calls
            return broken
    return None


def _process_of(seed: str) -> subprocess.Popen[bytes]:
    """This module as a process with a hash seed."""
    places = os.pathsep.join(place or os.getcwd() for place in sys.path)
    return subprocess.Popen(
        [sys.executable, "-m", "testbed.checks.hash_seeds"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": places},
    )


def _answers(name: str, process: subprocess.Popen[bytes], question: bytes) -> Answers:
    """Raises InputError if the plug-in `name` cannot be asked there."""
    output, errors = process.communicate(question)
    if process.returncode:
        last = errors.decode(errors="replace").strip().rpartition("\n")[2]
        reason = last or f"it ends with {process.returncode}"
        raise InputError(key=name, problem=f"cannot be checked in another process: {reason}")
    answers: Answers = json.loads(output)
    return answers


def answer() -> int:
    """Print the calls of each example with a digest of its answers. The question comes from
    `follows_hashes`; the exit code is 1 if a plug-in ends it.
    """
    name, pools, parameters = pickle.load(sys.stdin.buffer)
    try:
        with redirect_stdout(sys.stderr):  # what a plug-in prints
            examples = examples_of(locate(name, "plug-in"), pools, parameters)
            answers = [(example.calls, _digest(example.ask)) for example in examples]
    except BaseException as error:  # a plug-in may even exit
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    json.dump(answers, sys.stdout)
    return 0


def _digest(ask: Callable[[], object]) -> str:
    try:
        text = ADDRESS.sub("", repr(ask()))
    except Exception as error:  # the other process must get the same
        text = f"{type(error).__name__}: {error}"
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()


def examples_of(
    target: Any, pools: Sequence[PoolSpec], parameters: Mapping[str, Any]
) -> Iterator[Example]:
    """Some examples of what a plug-in of any kind is asked."""
    make = partial(target, **parameters)
    kind = kind_of(target)
    if kind is Scheduler:
        return _of_runs(target, Recompute, pools, parameters)
    if kind is PreemptionRule:
        return _of_runs(MixedPrefill, make, pools, LIMITS)
    if kind is EvictionOrder:
        return _of_order(make)
    if kind is CostModel:
        return _of_cost(make)
    if kind is Router:
        return _of_router(make)
    if kind is HandoverRule:
        return _of_handover(make)
    return _of_policy(make, pools)


def _of_policy(make: Any, pools: Sequence[PoolSpec]) -> Iterator[Example]:
    for pool in pools:
        histories = histories_of(make, pool)
        for _ in range(NUM_EXAMPLES):
            calls = histories.draw()
            ask = partial(Harness(make, pool, thorough=False).run, calls)
            yield Example([shown_pool(histories.memory, pool), *map(str, calls)], ask)


def _of_order(make: Any) -> Iterator[Example]:
    random = Random(0)
    for _ in range(NUM_EXAMPLES):
        calls = order_contract.histories(random)
        cache = order_contract.Cache(make(), one_by_one=False)
        yield Example([str(call) for call in calls], partial(cache.run, calls))


def _of_cost(make: Any) -> Iterator[Example]:
    cost = make(MODEL, SERVER)
    for work in works(Random(0), NUM_EXAMPLES):
        yield Example([f"iteration of {work}"], partial(cost.iteration, work))


def _of_router(make: Any) -> Iterator[Example]:
    for world, calls in stories(make, NUM_EXAMPLES):
        ask = partial(decisions_of, WatchedRouter(make()), world, calls)
        yield Example([str(world), *map(str, calls)], ask)


def _of_handover(make: Any) -> Iterator[Example]:
    rule = make()
    for sending in sendings(Random(0), NUM_EXAMPLES):
        yield Example([f"left_ps({sending})"], partial(rule.left_ps, sending))


def _of_runs(
    scheduler: type[Scheduler],
    rule: MakeRule,
    pools: Sequence[PoolSpec],
    parameters: Mapping[str, Any],
) -> Iterator[Example]:
    """Examples of runs with this scheduler, its parameters and a preemption rule."""
    make = partial(Paged, block_size=8)
    for pool, gap_ps in islice(((pool, gap) for pool in pools for gap in GAPS_PS), NUM_EXAMPLES):
        case = Case(make=make, pool=pool, scheduler=scheduler, rule=rule, parameters=parameters)
        memory = capabilities_of(make(pool))
        requests = list(
            workload(memory, serves_several=True, max_len=pool.max_len, prefix=0, gap_ps=gap_ps)
        )
        ask = partial(_decisions, case, requests)
        place = f"{scheduler.__name__} in {shown_pool(memory, pool)}"
        yield Example([place, *map(described, requests)], ask)


def _decisions(case: Case, requests: Any) -> object:
    return case.serve(requests, 0).decisions


if __name__ == "__main__":
    sys.exit(answer())
