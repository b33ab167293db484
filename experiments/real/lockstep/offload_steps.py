"""Two servers with a cache below the device, step by step on one workload: what each schedules,
stores, loads and evicts.

A transfer takes a stated number of steps. A step makes a plan, begins its transfers, carries it out
and ends the transfers that are due; a store begins in the step after that of its plan.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import NamedTuple, Protocol

from testbed.checks.contract import search
from testbed.core.request import Request
from testbed.experiments.real.lockstep.comparison import MAX_TRIES, smaller, workload

STEP_PS = 10**9


class Step(NamedTuple):
    """Decisions of a step, in tokens by request.

    computed: of its iteration. found: of those that begin, what they do not compute. loaded: what
    begins to be loaded. stored: what begins to be stored below. evicted: what the cache below has
    given up for that. preempted: the requests that lose their slots. free: of the cache below, when
    the step has ended, if both sides say so.
    """

    computed: Mapping[int, int]
    found: Mapping[int, int]
    loaded: Mapping[int, int]
    stored: Mapping[int, int]
    evicted: int
    preempted: tuple[int, ...]
    free: int = 0

    @property
    def is_empty(self) -> bool:
        """True if nothing is decided."""
        return not (any(self[:4]) or self.evicted or self.preempted)


class Server(Protocol):
    """A scheduler with its caches; `step` is called with growing numbers."""

    name: str

    def add(self, request: Request) -> None:
        """The request arrives before the next step."""

    def step(self, number: int) -> Step:
        """Plan and carry out one step."""

    def is_idle(self) -> bool:
        """True if no request is there, and no transfer under way."""


@dataclass(slots=True)
class Totals:
    """Tokens, by what was done with them; of one side, since the sides are equal. steps: those in
    which anything is.
    """

    steps: int = 0
    computed: int = 0
    found: int = 0
    loaded: int = 0
    stored: int = 0
    evicted: int = 0
    preempted: int = 0
    difference: list[str] = field(default_factory=list)

    def add(self, step: Step) -> None:
        """Count a step in which both sides decide the same."""
        self.steps += not step.is_empty
        for name in ("computed", "found", "loaded", "stored"):
            setattr(self, name, getattr(self, name) + sum(getattr(step, name).values()))
        self.evicted += step.evicted
        self.preempted += len(step.preempted)


def steps_of(server: Server, requests: Sequence[Request], most: int = 100_000) -> list[Step]:
    """All steps up to the last that decides something. Raises RuntimeError after `most` steps
    without an end.
    """
    steps, arriving = list[Step](), list(requests)[::-1]
    for number in range(most):
        while arriving and arriving[-1].arrival_ps <= number * STEP_PS:
            server.add(arriving.pop())
        if not arriving and server.is_idle():
            while steps and steps[-1].is_empty:
                steps.pop()
            return steps
        steps.append(server.step(number))
    raise RuntimeError(f"{server.name} is not idle after {most:,} steps")


def compare_steps(
    make: Callable[[], tuple[Server, Server]], requests: Sequence[Request], totals: Totals
) -> bool:
    """Serve the requests on both sides, and count equal steps; whether one differs, which
    `totals.difference` has.
    """
    sides = make()
    for number, pair in enumerate(zip_longest(*(steps_of(side, requests) for side in sides))):
        if pair[0] != pair[1]:
            totals.difference = [f"first difference: step {number:,}"]
            for side, step in zip(sides, pair, strict=True):
                totals.difference.append(f"  {side.name}: {'has ended' if step is None else step}")
            return True
        totals.add(pair[0])
    return False


def shortest_workload(
    make: Callable[[], tuple[Server, Server]], requests: Sequence[Request]
) -> list[str]:
    """Lines on the fewest and smallest requests that show a difference."""

    def differs(fewer: list[Request]) -> bool:
        return compare_steps(make, fewer, Totals())

    fewest = search.shortest(list(requests), differs, smaller, MAX_TRIES)
    totals = Totals()
    compare_steps(make, fewest, totals)
    return [*totals.difference, "shortest workload that was found:", *workload(fewest)]
