"""Two schedulers side by side: how many iterations are equal, the first that is not, and the shortest such workload."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from testbed.contract import search
from testbed.core.request import Request
from testbed.experiments.lockstep.iterations import Iteration, Side

Sides = tuple[Side, Side]


@dataclass(frozen=True, slots=True)
class Comparison:
    """num_iterations: of the longer side. first: the number of the first iteration that differs, None where none does.

    decided and states are both sides' there, ours first; None for a side that has ended. preemptions: of each side.
    """

    num_iterations: int
    num_equal: int
    preemptions: tuple[int, int]
    first: int | None = None
    decided: tuple[Iteration | None, Iteration | None] = (None, None)
    states: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))


def compare(sides: Sides, requests: Sequence[Request], iteration_ps: int, *, to_the_end: bool = True) -> Comparison:
    """Serve the requests, in order of arrival, on both sides, each iteration taking iteration_ps.

    Iterations are compared by number: which tokens of which requests, and who was preempted before them. Unless
    to_the_end, the first difference ends it.
    """
    count = equal = 0
    preemptions, first = [0, 0], Comparison(0, 0, (0, 0))
    for pair in zip_longest(*(side.iterations(requests, iteration_ps) for side in sides)):
        ours, theirs = pair
        same = ours is not None and theirs is not None and ours.decides_as(theirs)
        if not same and first.first is None:
            first = Comparison(0, 0, (0, 0), count, (ours, theirs), (sides[0].state(), sides[1].state()))
        count, equal = count + 1, equal + same
        for i, one in enumerate(pair):
            preemptions[i] += len(one.preempted) if one else 0
        if not same and not to_the_end:
            break
    return Comparison(count, equal, (preemptions[0], preemptions[1]), first.first, first.decided, first.states)


def shortest(
    make: Callable[[], Sides], requests: Sequence[Request], iteration_ps: int, max_tries: int = 300
) -> list[Request]:
    """The fewest and smallest of the requests that so many tries find and that still show a difference."""
    return search.shortest(
        list(requests),
        lambda fewer: compare(make(), fewer, iteration_ps, to_the_end=False).first is not None,
        smaller,
        max_tries,
    )


def smaller(requests: list[Request]) -> Iterator[list[Request]]:
    """The same requests but for some, the longest runs first; then with one earlier arrival or one length shorter."""
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
