"""The contract of routers, as a check of a class: small fleets are served by it.

9 The same requests and failures are routed alike, whatever other routers of the class have served.
10 route() raises no error, and answers one of the engines that it was given, which are those that
are up. 17 A router changes nothing that it sees, and its cache_age_s stays. 18 It does not read
how long answers will be: of requests that come at once, other lengths are routed alike.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any, TypeAlias

from testbed.checks.contract.clauses import ClauseBroken, call_raised, require
from testbed.checks.contract.search import shortest_break
from testbed.checks.fast_and_slow import LIMITS, roofline
from testbed.core.request import Incoming, Request
from testbed.core.units import PS
from testbed.engine.engine_parts import EngineParts
from testbed.engine.recorder import Recorder
from testbed.fleet.faults import Fault
from testbed.fleet.fleet_rules import FleetRules
from testbed.fleet.fleet_simulation import simulate_fleet
from testbed.fleet.routers.router import Router
from testbed.fleet.views import EngineView
from testbed.memory.policy import PoolSpec
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import Recompute

MakeRouter: TypeAlias = Callable[[], Router]
Decisions: TypeAlias = list[tuple[int, int]]  # a request's number, and its engine's
MS = PS // 1000
MAX_LEN = 128
POOL = PoolSpec(400, MAX_LEN)  # of each engine
NUM_ENGINES = (2, 3, 5)
NUM_CALLS = 12
MAX_TRIES = 60  # of shorter calls
STRIDE = 1000  # between the contents of two stories


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request comes `gap` ms after the one before; prompts of a story begin alike."""

    gap: int
    prompt_len: int
    output_len: int
    story: int = 0
    session: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """An engine fails when the request before has come, and is back `pause` + 1 ms later."""

    engine: int
    pause: int


Call: TypeAlias = Arrival | Failure
BEFORE = Arrival(0, 9, 2, story=2, session=3)  # what another router serves first


@dataclass(frozen=True)
class World:
    """A fleet of num_engines engines, whose requests belong to sessions or not."""

    num_engines: int
    has_sessions: bool

    def requests(self, calls: Sequence[Call]) -> list[Request]:
        """The requests of these calls."""
        requests, now_ps = list[Request](), 0
        for call in calls:
            if isinstance(call, Arrival):
                now_ps += call.gap * MS
                first = call.story * STRIDE
                lengths = call.prompt_len, call.output_len
                ids = tuple(range(first, first + call.prompt_len))
                session = call.session if self.has_sessions else None
                request = Request(len(requests), now_ps, *lengths, prompt_ids=ids, session=session)
                requests.append(request)
        return requests

    def faults(self, calls: Sequence[Call]) -> tuple[Fault, ...]:
        """The failures of these calls."""
        faults, now_ps = list[Fault](), 0
        for call in calls:
            if isinstance(call, Arrival):
                now_ps += call.gap * MS
            else:
                back_ps = now_ps + (call.pause + 1) * MS
                faults.append(Fault(call.engine % self.num_engines, now_ps, back_ps))
        return tuple(faults)


class WatchedRouter(Router):
    """Passes every call on to a router, until that breaks a clause.

    decisions: what it has answered. log: its calls. broken: the clause that it breaks, if any;
    every request goes to the first engine from then on.
    """

    def __init__(self, router: Router) -> None:
        self.router = router
        self.cache_age_s = router.cache_age_s
        self.decisions: Decisions = []
        self.log: list[str] = []
        self.broken: ClauseBroken | None = None

    def route(self, request: Incoming, engines: Sequence[EngineView]) -> EngineView:
        answer = engines[0]
        if self.broken is None:
            try:
                answer = self._checked(request, engines)
            except ClauseBroken as broken:
                self.broken = broken
                broken.calls = self.log
            else:
                self.log[-1] += f" -> {answer.number}"
                self.decisions.append((request.request_id, answer.number))
        return answer

    def _checked(self, request: Incoming, engines: Sequence[EngineView]) -> EngineView:
        """The router's answer, if that is one."""
        offered, before = list(engines), [dict(vars(view)) for view in engines]
        up = ", ".join(str(view.number) for view in engines)
        self.log.append(
            f"route(request {request.request_id} of {request.prompt_len} tokens, engines {up})"
        )
        try:
            answer: object = self.router.route(request, offered)
        except Exception as error:
            raise call_raised("route()", error) from error
        is_same = offered == list(engines) and before == [vars(view) for view in engines]
        for view, facts in zip(engines, before, strict=True):
            vars(view).update(facts)
        require(17, is_same, "route() changed the engines that it was given")
        kept = self.router.cache_age_s == self.cache_age_s
        require(17, kept, "cache_age_s has changed")
        is_one = type(answer) is EngineView and any(answer is view for view in engines)
        require(10, is_one, f"route() answered {answer!r}, which is none of its engines ({up})")
        assert isinstance(answer, EngineView)
        return answer


def check_router(make: MakeRouter, num_examples: int = 200) -> ClauseBroken | None:
    """The clause that a router breaks, with the shortest calls that break it; None if it keeps
    all.
    """
    for world, calls in stories(make, num_examples):
        broken = broken_by(make, world, calls)
        if broken is not None:
            again = partial(broken_by, make, world)
            return shortest_break(calls, broken, again, max_tries=MAX_TRIES)
    return None


def stories(make: MakeRouter, count: int) -> Iterator[tuple[World, list[Call]]]:
    """Fleets, and the requests and failures that they see."""
    random, needs_sessions = Random(0), make().needs_sessions
    for number in range(count):
        world = World(NUM_ENGINES[number % len(NUM_ENGINES)], needs_sessions or number % 2 == 0)
        yield world, [_drawn(random) for _ in range(NUM_CALLS)]


def _drawn(random: Random) -> Call:
    if random.random() < 0.15:
        return Failure(random.randrange(5), random.choice([0, 20, 200]))
    gap, prompt_len = random.choice([0, 0, 3, 40]), random.randint(1, 64)
    return Arrival(gap, prompt_len, random.randint(1, 40), random.randrange(3), random.randrange(4))


def broken_by(make: MakeRouter, world: World, calls: Sequence[Call]) -> ClauseBroken | None:
    """The clause that the calls break."""
    router = WatchedRouter(make())
    try:
        decisions = decisions_of(router, world, calls)
        decisions_of(WatchedRouter(make()), world, [BEFORE, *calls[::2]])
        again = decisions_of(WatchedRouter(make()), world, calls)
        require(9, again == decisions, "the same requests and failures are routed otherwise")
        _check_blind(make, world, [call for call in calls if isinstance(call, Arrival)])
    except ClauseBroken as broken:
        broken.calls = broken.calls or router.log
        return broken
    return None


def decisions_of(router: WatchedRouter, world: World, calls: Sequence[Call]) -> Decisions:
    """The engines that the router chooses in such a fleet. Raises ClauseBroken."""
    requests = world.requests(calls)
    if requests:
        recorders = [Recorder() for _ in range(world.num_engines)]
        rules = FleetRules(router, faults=world.faults(calls))
        simulate_fleet(requests, _engine, recorders, rules)
    if router.broken is not None:
        raise router.broken
    return router.decisions


def _engine(_: int) -> EngineParts:
    limits: dict[str, Any] = {**LIMITS}
    scheduler = MixedPrefill(PrefixCaching(POOL, block_size=8), Recompute(), **limits)
    return EngineParts(scheduler, roofline(), MAX_LEN)


def _check_blind(make: MakeRouter, world: World, arrivals: Sequence[Arrival]) -> None:
    """Clause 18: when all requests come at once, none has an answer that could be seen."""
    at_once = [replace(arrival, gap=0) for arrival in arrivals]
    longer = [replace(arrival, output_len=41 - arrival.output_len) for arrival in at_once]
    routed = [decisions_of(WatchedRouter(make()), world, calls) for calls in (at_once, longer)]
    require(18, routed[0] == routed[1], "route() follows the lengths of answers that are to come")
