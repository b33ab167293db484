"""One run of a fleet."""

from collections.abc import Iterable, Sequence
from functools import partial

from testbed.core.request import Request
from testbed.cost.model import UNBOUNDED
from testbed.engine.arrivals import AnswerDrivenWorkload
from testbed.engine.clients import client_of
from testbed.engine.engine import Engine
from testbed.engine.engine_parts import MakeParts
from testbed.engine.mode import WHOLE_RUN, Mode
from testbed.engine.recorder import Recorder
from testbed.engine.sim_clock import SimClock
from testbed.engine.simulation import Environment, simulated_engine
from testbed.fleet.faults import Faults
from testbed.fleet.fleet import Fleet
from testbed.fleet.fleet_records import check_conservation
from testbed.fleet.fleet_rules import FleetRules
from testbed.fleet.handovers.split import SplitFleet
from testbed.fleet.shared_tiers import SharedTiers


def simulate_fleet(
    requests: Iterable[Request],
    make_parts: MakeParts,
    recorders: Sequence[Recorder],
    rules: FleetRules,
    mode: Mode = WHOLE_RUN,
    env: Environment | None = None,
) -> Fleet:
    """Serve `requests` by as many engines as there are recorders; the fleet, whose engines and
    recorders can be looked at. Raises PlugInError if a request is lost or answered twice, or a
    block of a shared tier is lost. env: SimPy's, whose events a caller may watch. The other
    arguments: see `make_fleet`. Engines that the rules keep apart take their own requests as they
    arrive; the records are the same.
    """
    clock = SimClock(env)
    fleet = make_fleet(clock, make_parts, recorders, rules, mode)
    is_watched = env is not None or not mode.fast_forward or mode.stop_ps < UNBOUNDED
    if is_watched or not rules.keep_apart or isinstance(requests, AnswerDrivenWorkload):
        client_of(clock, fleet, requests).start()
    else:
        fleet.follow(requests)
    Faults(clock, fleet, rules.faults).start()
    fleet.start()
    run_to_end(clock, fleet, mode.stop_ps)
    if mode.stop_ps == UNBOUNDED:
        check_conservation(fleet.num_arrived, recorders)
    fleet.tiers.check()
    return fleet


def make_fleet(
    clock: SimClock,
    make_parts: MakeParts,
    recorders: Sequence[Recorder],
    rules: FleetRules,
    mode: Mode = WHOLE_RUN,
) -> Fleet:
    """Engines on this clock, one for each recorder.

    make_parts: new parts of the engine of a number, called once for each, and again when one comes
    back after a fault; engines may differ. The faults of the rules are the caller's to start.
    """
    tiers = SharedTiers(clock, rules.shared_tiers)

    def make_engine(number: int) -> Engine:
        parts = make_parts(number)
        tiers.lend(parts.scheduler.memory)
        to_come = mode.from_now(clock.now_ps)
        return simulated_engine(clock, parts, recorders[number], to_come, tiers.links)

    kind = Fleet if rules.split is None else partial(SplitFleet, rules.split)
    return kind(clock, make_engine, len(recorders), rules.router, tiers)


def run_to_end(clock: SimClock, fleet: Fleet, stop_ps: int) -> None:
    """Let time pass until the loops of all engines have ended, and every request with them."""
    while True:
        for process in fleet.processes:  # of engines that come back meanwhile too
            clock.env.run(until=process)
        if fleet.has_ended or clock.now_ps >= stop_ps:
            return
        clock.env.step()  # no engine is up: until one comes back
