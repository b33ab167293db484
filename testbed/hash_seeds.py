"""Clause 9 across processes: what a plug-in does may not follow the order of a set of strings,
which Python draws anew for each process.

Two processes with different hash seeds carry out the same examples, and must get the same answers.
"""

import hashlib
import inspect
import io
import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import fields, is_dataclass
from functools import partial
from itertools import islice
from random import Random
from typing import Any, NamedTuple

from testbed.contract import orders
from testbed.contract.clauses import ClauseBroken
from testbed.contract.costs import works
from testbed.contract.search import Harness, histories_of
from testbed.core.errors import InputError
from testbed.cost.model import CostModel
from testbed.fast_and_slow import GAPS_PS, MODEL, SERVER, Case, described, workload
from testbed.memory.capabilities import capabilities_of
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec
from testbed.memory.prefix_cache.eviction.order import EvictionOrder
from testbed.parts import locate
from testbed.sched.preemption import Recompute
from testbed.sched.scheduler import Scheduler

SEEDS = ("1", "2")
NUM_EXAMPLES = 20
CHILD = "from testbed.hash_seeds import answer_parent; answer_parent()"
ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of an object, in its representation


class Example(NamedTuple):
    """What a plug-in is called with, in words, and the function that gives all its answers."""

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
        found = locate(name, "plug-in")
    except InputError:
        return None
    return name if found is target else None


def follows_hashes(
    target: Any, pools: Sequence[PoolSpec], parameters: Mapping[str, Any]
) -> ClauseBroken | None:
    """The first example whose answers differ between two hash seeds; None if there is none, or if
    another process cannot make the plug-in.
    """
    name = importable_name(target)
    try:
        question = _pickled((name, pools, dict(parameters)))
    except (pickle.PicklingError, AttributeError, TypeError):  # such as a lambda
        return None
    if name is None:
        return None
    processes = [_started(seed) for seed in SEEDS]
    answers = [_answers_of(process, question, name) for process in processes]
    for (calls, one), (_, other) in zip(*answers, strict=True):
        if one != other:
            seeds = " and ".join(SEEDS)
            broken = ClauseBroken(
                9, f"the same calls give other answers under PYTHONHASHSEED {seeds} (sort the set)"
            )
            broken.calls = calls
            return broken
    return None


class _ByConstructor(pickle.Pickler):
    """Pickles a dataclass as a call of its class: fields of a frozen one cannot be set afterwards,
    in a compiled build not even by `pickle`.
    """

    def reducer_override(self, value: Any) -> Any:
        if not is_dataclass(value) or isinstance(value, type):
            return NotImplemented
        return type(value), tuple(getattr(value, field.name) for field in fields(value))


def _pickled(value: object) -> bytes:
    buffer = io.BytesIO()
    _ByConstructor(buffer).dump(value)
    return buffer.getvalue()


def _started(seed: str) -> "subprocess.Popen[bytes]":
    places = os.pathsep.join(place or os.getcwd() for place in sys.path)
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": places}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=pipe, stdout=pipe, stderr=pipe, env=environment
    )


def _answers_of(
    process: "subprocess.Popen[bytes]", question: bytes, name: str
) -> list[tuple[list[str], str]]:
    output, errors = process.communicate(question)
    if process.returncode:
        last = errors.decode(errors="replace").strip().rpartition("\n")[2]
        raise InputError(f"{name}: cannot be checked in another process: {last}")
    answers: list[tuple[list[str], str]] = json.loads(output)
    return answers


def answer_parent() -> None:
    """Read the question of `follows_hashes`, and write the calls and a digest of the answers of
    each example.
    """
    with redirect_stdout(sys.stderr):  # what a plug-in prints
        name, pools, parameters = pickle.load(sys.stdin.buffer)
        examples = examples_of(locate(name, "plug-in"), pools, parameters)
        answers = [(example.calls, _digest(example.ask)) for example in examples]
    json.dump(answers, sys.stdout)


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
    if inspect.isclass(target) and issubclass(target, Scheduler):
        return _of_scheduler(target, pools, parameters)
    if inspect.isclass(target) and issubclass(target, EvictionOrder):
        return _of_order(make)
    if inspect.isclass(target) and issubclass(target, CostModel):
        return _of_cost(make)
    return _of_policy(make, pools)


def _of_policy(make: Any, pools: Sequence[PoolSpec]) -> Iterator[Example]:
    for pool in pools:
        histories = histories_of(make, pool)
        for _ in range(NUM_EXAMPLES):
            calls = histories.draw()
            ask = partial(Harness(make, pool, thorough=False).run, calls)
            yield Example([str(pool), *map(str, calls)], ask)


def _of_order(make: Any) -> Iterator[Example]:
    random = Random(0)
    for _ in range(NUM_EXAMPLES):
        calls = orders.histories(random)
        cache = orders.Cache(make(), one_by_one=False)
        yield Example([str(call) for call in calls], partial(cache.run, calls))


def _of_cost(make: Any) -> Iterator[Example]:
    cost = make(MODEL, SERVER)
    for work in works(Random(0), NUM_EXAMPLES):
        yield Example([f"iteration of {work}"], partial(cost.iteration, work))


def _of_scheduler(
    kind: type[Scheduler], pools: Sequence[PoolSpec], parameters: Mapping[str, Any]
) -> Iterator[Example]:
    make = partial(Paged, block_size=8)
    for pool, gap_ps in islice(((pool, gap) for pool in pools for gap in GAPS_PS), NUM_EXAMPLES):
        case = Case(make, pool, kind, Recompute, parameters)
        memory = capabilities_of(make(pool))
        requests = list(workload(memory, True, pool.max_len, 0, gap_ps))
        ask = partial(_decisions, case, requests)
        yield Example([f"{kind.__name__} in {pool}", *map(described, requests)], ask)


def _decisions(case: Case, requests: Any) -> object:
    return case.serve(requests, 0).decisions
