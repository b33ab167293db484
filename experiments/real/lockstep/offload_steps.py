"""Two servers with a cache below the device, step by step on one workload: what each schedules,
stores, loads and evicts.

A transfer takes a stated number of steps. A step makes a plan, begins its transfers, carries it out
and ends the transfers that are due; a store begins in the step after that of its plan.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from math import ceil
from random import Random
from typing import Any, NamedTuple, Protocol

from testbed.checks.contract import search
from testbed.core.request import Request
from testbed.engine.outputs import Outputs
from testbed.experiments.real.lockstep.comparison import MAX_TRIES, smaller, workload
from testbed.sched.beam_search import SyntheticBeams
from testbed.sched.plan import Plan
from testbed.sched.scheduler import Scheduler

STEP_PS = 10**9
TOKENS = ("computed", "found", "loaded", "stored")
OF_ALL = -1  # moves of no request that both sides know


class Step(NamedTuple):
    """Decisions of a step, in tokens by request.

    computed: of its iteration. found: of those that begin, what they do not compute. loaded: what
    begins to be loaded. stored: what begins to be stored below. evicted: what the cache below has
    given up for that. preempted: the requests that lose their slots. free: of the cache below, when
    the step has ended, if both sides say so.
    """

    computed: Mapping[int, int] = {}
    found: Mapping[int, int] = {}
    loaded: Mapping[int, int] = {}
    stored: Mapping[int, int] = {}
    evicted: int = 0
    preempted: tuple[int, ...] = ()
    free: int = 0

    @property
    def is_empty(self) -> bool:
        """True if nothing is decided."""
        return not (any(self[:4]) or self.evicted or self.preempted)

    @property
    def counts(self) -> dict[str, int]:
        """One step if anything is decided, its tokens, and the requests that lose their slots."""
        tokens = {name: sum(getattr(self, name).values()) for name in TOKENS}
        rest = {"evicted below": self.evicted, "preempted": len(self.preempted)}
        return {"steps": int(not self.is_empty)} | tokens | rest

    def with_sums(self, sums: Sequence[int], free: int) -> "Step":
        """This step with what all requests together load, store and evict."""
        loaded, stored, evicted = sums
        return self._replace(
            loaded={OF_ALL: loaded} if loaded else {},
            stored={OF_ALL: stored} if stored else {},
            evicted=evicted,
            free=free,
        )


class Server(Protocol):
    """A scheduler with its caches; `step` is called with growing numbers."""

    name: str

    def add(self, request: Request) -> None:
        """The request arrives before the next step."""

    def step(self, number: int) -> Step:
        """Plan and carry out one step."""

    def is_idle(self) -> bool:
        """True if no request is there, and no transfer under way."""


class OurSteps:
    """Our scheduler and policy. num_steps: that a transfer takes."""

    name = "testbed"

    def __init__(self, scheduler: Scheduler, num_steps: int) -> None:
        self.scheduler, self.num_steps = scheduler, num_steps
        self.policy: Any = scheduler.policy
        self.outputs = Outputs(scheduler.state, SyntheticBeams())
        self.due: dict[int, int] = {}  # the step before which a transfer has landed
        self._counts = self.counts()

    def add(self, request: Request) -> None:
        self.outputs.arrived(request)
        self.scheduler.add(request.incoming)

    def is_idle(self) -> bool:
        state = self.scheduler.state
        return not (state.num_waiting or state.running or self.due)

    def step(self, number: int) -> Step:
        for move_id in [move for move, due in self.due.items() if due <= number]:
            del self.due[move_id]
            self.policy.landed(move_id)
        plan = self.scheduler.plan()
        self.policy.check()
        self.outputs.preempted(plan)
        step = self.decided(plan, number)
        self.carry_out(plan)
        self.policy.check()
        return step

    def decided(self, plan: Plan, number: int) -> Step:
        """The step of a plan."""
        chunks = {chunk.group.request_id: chunk for chunk in plan.chunks}
        computed = {name: chunk.new for name, chunk in chunks.items()}
        if plan.decode_seqs:
            computed |= {seq.request_id: 1 for seq in self.scheduler.state.batch}
        found = {name: chunk.num_stored for name, chunk in chunks.items()}
        preempted = sorted(group.request_id for group in plan.preempted)
        return Step(computed, found, preempted=tuple(preempted))

    def carry_out(self, plan: Plan) -> None:
        """End the iteration of a plan."""
        results = self.outputs.results(plan, 1)
        self.outputs.follow(plan, self.scheduler.commit(plan, 1, results))

    def counts(self) -> Sequence[int]:
        """Counts of the policy that a step reads the growth of."""
        return ()

    def growth(self) -> list[int]:
        """The growth of the counts since the step before."""
        before, self._counts = self._counts, self.counts()
        return [now - then for then, now in zip(before, self._counts, strict=True)]


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
    make: Callable[[], tuple[Server, Server]], requests: Sequence[Request], counts: Counter[str]
) -> list[str]:
    """Serve the requests on both sides, and count what both decide in equal steps; lines on the
    first step that differs, if one does.
    """
    sides = make()
    for number, pair in enumerate(zip_longest(*(steps_of(side, requests) for side in sides))):
        if pair[0] != pair[1]:
            decided = ("has ended" if step is None else step for step in pair)
            lines = (f"  {side.name}: {step}" for side, step in zip(sides, decided, strict=True))
            return [f"first difference: step {number:,}", *lines]
        counts.update(pair[0].counts)
    return []


def shortest_workload(
    make: Callable[[], tuple[Server, Server]], requests: Sequence[Request]
) -> list[str]:
    """Lines on the fewest and smallest requests that show a difference."""

    def difference(fewer: list[Request]) -> list[str]:
        return compare_steps(make, fewer, Counter())

    fewest = search.shortest(
        list(requests), lambda fewer: bool(difference(fewer)), smaller, MAX_TRIES
    )
    return [*difference(fewest), "shortest workload that was found:", *workload(fewest)]


class LoadFailed(Exception):
    """The other side fails to load what it has found."""


class Load(Protocol):
    """A server and its requests; its text has the server alone."""

    @property
    def requests(self) -> Sequence[Request]:
        """In order of arrival."""


def check_loads(
    name: str,
    loads: Iterable[Load],
    ours: Callable[[Any], Server],
    theirs: Callable[[Any], Server],
    preempted: str = "preemptions",
) -> Iterator[str]:
    """Compare both sides of each load; lines of a report, the last of which names the first
    difference if there is one. name: of the other side. ours, theirs: of a load.
    """
    counts, num_failed, number = Counter[str](), 0, -1
    for number, load in enumerate(loads):

        def sides(load: Load = load) -> tuple[Server, Server]:
            return ours(load), theirs(load)

        try:
            difference = compare_steps(sides, load.requests, counts)
        except LoadFailed:
            num_failed += 1
            continue
        if difference:
            yield f"load {number}: {load}"
            yield from shortest_workload(sides, load.requests)
            return
    failed = f" ({num_failed} failed to load)" if num_failed else ""
    tokens = ", ".join(f"{counts[kind]:,} {kind}" for kind in (*TOKENS, "evicted below"))
    yield (
        f"{name}: {counts['steps']:,} steps of {number + 1 - num_failed} loads are equal{failed}; "
        f"tokens: {tokens}; {counts['preempted']:,} {preempted}"
    )


def draw_requests(
    random: Random,
    count: int,
    stories: Sequence[Sequence[int]],
    most: int,
    size: int,
    factor: float = 1,
    least_id: int = 0,
) -> Iterator[Request]:
    """Requests that begin with parts of the stories, half of them of whole blocks of `size` tokens.
    most: tokens of a prompt and `factor` times its output. least_id:
    below are special tokens.
    """
    gap, now = random.choice([0.5, 3, 15]), 0.0
    for i in range(count):
        now += random.expovariate(1 / gap)
        output_len = random.choice([1, random.randint(1, max(most // 4, 1))])
        length = random.randint(1, random.choice([most // 4 + 1, most // 2 + 1, most - output_len]))
        if random.random() < 0.5:
            length = max(length // size * size, 1)
        length = max(min(length, most - ceil(output_len * factor)), 1)
        shared = random.choice([0, length, random.randint(0, length)])
        story = random.choice(stories)[:shared]
        ids = (*story, *draw_ids(random, length - shared, least_id))
        yield Request(i, round(now * STEP_PS), length, output_len, prompt_ids=ids)


def draw_ids(random: Random, count: int, least_id: int = 0) -> list[int]:
    """So many tokens, from least_id on."""
    return [random.randrange(least_id, 10**6) for _ in range(count)]
