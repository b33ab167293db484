"""Two schedulers on one workload: their equal iterations, and the first difference."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice, product, zip_longest
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from testbed.checks.contract import search
from testbed.core.request import PS, Request

MAX_IDS = 12
MAX_TRIES = 300
ITERATION_PS = PS // 100


class Iteration(NamedTuple):
    """One iteration of a scheduler.

    now_ps: its begin. tokens: the number of computed tokens by request. preempted: the requests
    preempted since the iteration before. cached: the stored tokens before the first
    computed one of each prompt, if a comparison counts them.
    """

    now_ps: int
    tokens: Mapping[int, int]
    preempted: tuple[int, ...]
    cached: Mapping[int, int] = MappingProxyType({})

    def decides_as(self, other: "Iteration | None") -> bool:
        """True if both compute the same tokens and preempt the same requests, in any order."""
        if other is None or (self.tokens, self.cached) != (other.tokens, other.cached):
            return False
        return sorted(self.preempted) == sorted(other.preempted)

    def __str__(self) -> str:
        counts = sorted(self.tokens.items())
        tokens = ", ".join(f"{request_id}: {count}" for request_id, count in counts)
        preempted = f"; preempted {', '.join(map(str, self.preempted))}" if self.preempted else ""
        cached = f" behind {dict(sorted(self.cached.items()))}" if self.cached else ""
        return f"at {self.now_ps / PS:.6g} s tokens by request {{{tokens}}}{cached}{preempted}"


class SideFailed(Exception):
    """A scheduler of another system has raised an error of its own, in an iteration to come."""


class Side(Protocol):
    """A scheduler on a clock of constant iterations."""

    name: str

    def iterations(self, requests: Sequence[Request], iteration_ps: int) -> Iterator[Iteration]:
        """The iterations that compute something, until all have ended. May be called only once."""

    def state(self) -> list[str]:
        """Its requests and its pool now, in words."""


Sides = tuple[Side, Side]


@dataclass(slots=True)
class Comparison:
    """The result of a comparison.

    num_iterations: of the longer side. preemptions: of each side. first: the number of the first
    iteration that differs, or None. difference: lines on both sides' decision and state there.
    failure: the error of its own with which a side has ended before the requests have; empty: none.
    """

    num_iterations: int
    num_equal: int
    preemptions: list[int]
    first: int | None
    difference: list[str]
    failure: str = ""


def compare(
    sides: Sides, requests: Sequence[Request], iteration_ps: int, *, to_the_end: bool = True
) -> Comparison:
    """Serve the requests on both sides, and compare their iterations by number.

    requests: in order of arrival. iteration_ps: the time of every iteration. to_the_end: go on
    after the first difference.
    """
    comparison = Comparison(0, 0, [0, 0], None, [])
    try:
        _compare(sides, requests, iteration_ps, comparison, to_the_end=to_the_end)
    except SideFailed as failed:
        comparison.failure = str(failed)
    return comparison


def _compare(
    sides: Sides,
    requests: Sequence[Request],
    iteration_ps: int,
    comparison: Comparison,
    *,
    to_the_end: bool,
) -> None:
    for pair in zip_longest(*(side.iterations(requests, iteration_ps) for side in sides)):
        same = pair[0] is not None and pair[0].decides_as(pair[1])
        if not same and comparison.first is None:
            comparison.first = comparison.num_iterations
            for side, iteration in zip(sides, pair, strict=True):
                comparison.difference += [
                    f"  {side.name}: {iteration or 'has ended'}",
                    *(f"    {line}" for line in side.state()),
                ]
        comparison.num_iterations += 1
        comparison.num_equal += same
        comparison.preemptions = [
            n + len(iteration.preempted) if iteration else n
            for n, iteration in zip(comparison.preemptions, pair, strict=True)
        ]
        if not same and not to_the_end:
            break


def report(sides: Sides, comparison: Comparison) -> list[str]:
    """Lines: the number of equal iterations, and the first difference with both sides' state."""
    preemptions = " and ".join(
        f"{n:,} ({side.name})" for n, side in zip(comparison.preemptions, sides, strict=True)
    )
    head = (
        f"{comparison.num_equal:,} of {comparison.num_iterations:,} iterations are equal; "
        f"preemptions {preemptions}"
    )
    if comparison.failure:
        head += f"; then an error ends {comparison.failure}"
    if comparison.first is None:
        return [head]
    return [head, f"first difference: iteration {comparison.first + 1:,}", *comparison.difference]


def shortest(
    make: Callable[[], Sides], requests: Sequence[Request], iteration_ps: int
) -> list[Request]:
    """The fewest and smallest requests that show a difference, found in MAX_TRIES tries."""
    return search.shortest(
        list(requests),
        lambda fewer: compare(make(), fewer, iteration_ps, to_the_end=False).first is not None,
        smaller,
        MAX_TRIES,
    )


def smaller(requests: list[Request]) -> Iterator[list[Request]]:
    """Smaller workloads: without a run of requests, or with an earlier arrival or a shorter length.

    The longest runs are left out first.
    """
    yield from search.without_runs(requests)
    for i, request in enumerate(requests):
        before = requests[i - 1].arrival_ps if i else 0
        for name, value, least in (
            ("arrival_ps", request.arrival_ps, before),
            ("output_len", request.output_len, 1),
            ("prompt_len", request.prompt_len, 1),
        ):
            for less in dict.fromkeys((least, (least + value) // 2, value - 1)):
                if least <= less < value:
                    changed: dict[str, Any] = {name: less}
                    yield [*requests[:i], request._replace(**changed), *requests[i + 1 :]]


def workload(requests: Sequence[Request]) -> Iterator[str]:
    """A line for each request: arrival, lengths, and the first ids of its prompt."""
    for request in requests:
        ids, contents = request.prompt_ids, ""
        if ids is not None:
            contents = f", content {list(ids[:MAX_IDS])}{' ...' if len(ids) > MAX_IDS else ''}"
        yield (
            f"  request {request.request_id} at {request.arrival_ps / PS:.6g} s: "
            f"{request.prompt_len} tokens in, {request.output_len} out{contents}"
        )


class Tokens:
    """The token ids of prompts and answers: equal ones for equal contents, else ids of their own.
    first: the smallest.
    """

    def __init__(self, first: int) -> None:
        self._new = count(first)
        self._known = defaultdict[tuple[int, int], int](lambda: next(self._new))

    def new(self) -> int:
        """An id that nothing else has."""
        return next(self._new)

    def prompt(self, request: Request) -> list[int]:
        """The tokens of a prompt."""
        if request.prompt_ids is None:
            return [self.new() for _ in range(request.prompt_len)]
        places = product(request.prompt_ids, range(request.tokens_per_id))
        return [self._known[place] for place in islice(places, request.prompt_len)]

    def answer(self, request: Request, number: int) -> int:
        """A token of an answer, by its number from 0."""
        if request.answer_id is None:
            return self.new()
        return self._known[_answer_place(request, request.answer_id, number)]

    def end_answer(self, request: Request, stop: int) -> None:
        """Let the last token of a named answer be this one wherever a prompt has it."""
        if request.answer_id is not None:
            place = _answer_place(request, request.answer_id, request.output_len - 1)
            self._known.setdefault(place, stop)


def _answer_place(request: Request, answer_id: int, number: int) -> tuple[int, int]:
    """The id of a token of an answer, and its place among the tokens of this id: where a later
    prompt has the token.
    """
    place = request.prompt_len + number
    return answer_id + place // request.tokens_per_id, place % request.tokens_per_id
