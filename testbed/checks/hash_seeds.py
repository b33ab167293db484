"""Clause 9 across processes: what a plug-in does may not follow the order of a set of strings,
which Python draws anew for each process.

Two processes with different hash seeds carry out the same examples, and must get the same answers.
They wait for questions as long as this process lives, and answer each in a process that they fork.
"""

import hashlib
import inspect
import io
import json
import os
import pickle
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import fields, is_dataclass
from functools import cache, partial
from itertools import islice
from random import Random
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

from testbed.checks.contract import orders
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
from testbed.core.errors import InputError
from testbed.cost.model import CostModel
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
CHILD = "from testbed.checks.hash_seeds import answer_parent; answer_parent()"
LENGTH = struct.Struct("<Q")  # precedes what goes through a pipe
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
        question = _pickled((name, pools, dict(parameters)))
    except (pickle.PicklingError, AttributeError, TypeError):  # such as a lambda
        return None
    if name is None:
        return None
    processes = [_process_of(seed, os.getpid()) for seed in SEEDS]
    for process in processes:
        process.ask(question)
    answers = [process.answers(name) for process in processes]
    for (calls, first_answer), (_, second_answer) in zip(*answers, strict=True):
        if first_answer != second_answer:
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


@cache
def _process_of(seed: str, owner: int) -> "OtherProcess":
    """The process of a hash seed that answers `owner`: a fork must not read another's answers."""
    return OtherProcess(seed)


class OtherProcess:
    """A process with a hash seed, which answers one question after the other."""

    def __init__(self, seed: str) -> None:
        places = os.pathsep.join(_places())
        self._seed = seed
        self._errors = TemporaryFile()  # noqa: SIM115 (open as long as the process)
        self._process = subprocess.Popen(
            [sys.executable, "-c", CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**self._environment(), "PYTHONPATH": places},
        )

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONHASHSEED": self._seed}

    def ask(self, question: bytes) -> None:
        assert self._process.stdin is not None
        state = os.getcwd(), _places(), self._environment(), question
        with suppress(BrokenPipeError):  # it has ended: `answers` says why
            _write(self._process.stdin, pickle.dumps(state))

    def answers(self, name: str) -> Answers:
        """Raises InputError where the plug-in `name` cannot be asked there."""
        assert self._process.stdout is not None
        answer = _read(self._process.stdout)
        reply = json.loads(answer) if answer else self._last_error()
        if isinstance(reply, str):
            raise InputError(f"{name}: cannot be checked in another process: {reply}")
        answers: Answers = reply
        return answers

    def _last_error(self) -> str:
        _process_of.cache_clear()  # the next check starts another
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip().rpartition("\n")[2]


def _places() -> list[str]:
    """Where this process looks for modules."""
    return [place or os.getcwd() for place in sys.path]


def _write(stream: IO[bytes], content: bytes) -> None:
    stream.write(LENGTH.pack(len(content)) + content)
    stream.flush()


def _read(stream: IO[bytes]) -> bytes:
    """What the other side has written; empty at its end."""
    head = stream.read(LENGTH.size)
    return stream.read(*LENGTH.unpack(head)) if head else b""


def answer_parent() -> None:
    """Answer the questions of `follows_hashes`, each in a process of its own: what it imports and
    changes is not there for the next.
    """
    while asked := _read(sys.stdin.buffer):
        reader, writer = os.pipe()
        if not (child := os.fork()):
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(json.dumps(_answer(asked)).encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            answer = pipe.read()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        _write(sys.stdout.buffer, answer or json.dumps(f"it ends with {code}").encode())


def _answer(asked: bytes) -> Answers | str:
    """The calls of each example with a digest of its answers; or a text that says why there are
    none.
    """
    folder, places, environment, question = pickle.loads(asked)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = places
    try:
        name, pools, parameters = pickle.loads(question)
        examples = examples_of(locate(name, "plug-in"), pools, parameters)
        with redirect_stdout(sys.stderr):  # what a plug-in prints
            return [(example.calls, _digest(example.ask)) for example in examples]
    except BaseException as error:  # a plug-in may even exit
        return f"{type(error).__name__}: {error}"


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
        return _of_runs(target, Recompute, pools, parameters)
    if inspect.isclass(target) and issubclass(target, PreemptionRule):
        return _of_runs(MixedPrefill, make, pools, LIMITS)
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
            yield Example([shown_pool(histories.memory, pool), *map(str, calls)], ask)


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
