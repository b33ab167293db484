"""One run of a fleet."""

from collections.abc import Iterable, Sequence

from testbed.core.request import Request
from testbed.cost.model import UNBOUNDED
from testbed.engine.clients import client_of
from testbed.engine.engine import Engine
from testbed.engine.recorder import Recorder
from testbed.engine.sim_clock import SimClock
from testbed.engine.simulation import simulated_engine
from testbed.fleet.faults import Fault, Faults
from testbed.fleet.fleet import Fleet, MakeEngine
from testbed.fleet.handovers.split import Split, SplitFleet
from testbed.fleet.parts import MakeParts
from testbed.fleet.records import check_conservation
from testbed.fleet.routers.router import Router


def simulate_fleet(
    requests: Iterable[Request],
    make_parts: MakeParts,
    recorders: Sequence[Recorder],
    router: Router,
    *,
    split: Split | None = None,
    faults: tuple[Fault, ...] = (),
    fast_forward: bool = True,
    stop_ps: int = UNBOUNDED,
    snapshots_ps: Iterable[int] = (),
) -> Fleet:
    """Serve `requests` by as many engines as there are recorders; the fleet, whose engines and
    recorders can be looked at.

    split: how the first engines prefill for the others; None: each engine does all.
    make_parts: new parts of the engine of a number, called once for each, and again when one comes
    back after a fault; engines may differ. Raises PlugInError where a request is lost or answered
    twice.
    """
    clock = SimClock()
    make_engine = engine_maker(
        clock,
        make_parts,
        recorders,
        fast_forward=fast_forward,
        stop_ps=stop_ps,
        snapshots_ps=tuple(snapshots_ps),
    )
    fleet = make_fleet(clock, make_engine, len(recorders), router, split)
    client_of(clock, fleet, requests).start()
    Faults(clock, fleet, faults).start()
    fleet.start()
    run_to_end(clock, fleet, stop_ps)
    if stop_ps == UNBOUNDED:
        check_conservation(fleet.num_arrived, recorders)
    return fleet


def make_fleet(
    clock: SimClock,
    make_engine: MakeEngine,
    num_engines: int,
    router: Router,
    split: Split | None = None,
) -> Fleet:
    """Engines that do all the same, or, with a split, some that only prefill."""
    if split is None:
        return Fleet(clock, clock.start, make_engine, num_engines, router)
    return SplitFleet(clock, clock.start, make_engine, num_engines, router, split)


def engine_maker(
    clock: SimClock,
    make_parts: MakeParts,
    recorders: Sequence[Recorder],
    *,
    fast_forward: bool = True,
    stop_ps: int = UNBOUNDED,
    snapshots_ps: tuple[int, ...] = (),
) -> MakeEngine:
    """A function that makes the engine of a number on this clock, with its recorder."""

    def make_engine(number: int) -> Engine:
        parts = make_parts(number)
        return simulated_engine(
            clock,
            parts.scheduler,
            parts.cost,
            parts.max_len,
            recorders[number],
            beams=parts.beams,
            lengths=parts.lengths,
            pool=parts.pool,
            fast_forward=fast_forward,
            snapshots_ps=[time_ps for time_ps in snapshots_ps if time_ps >= clock.now_ps],
            stop_ps=stop_ps,
        )

    return make_engine


def run_to_end(clock: SimClock, fleet: Fleet, stop_ps: int) -> None:
    """Let time pass until the loops of all engines have ended, and every request with them."""
    while True:
        for process in list(fleet.processes):
            clock.env.run(until=process)
        if fleet.has_ended or clock.now_ps >= stop_ps:
            return
        clock.env.step()  # no engine is up: until one comes back
