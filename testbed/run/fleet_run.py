"""Runs of several engines: simulated, and summed up."""

import time
from collections.abc import Callable, Sequence

from testbed.core.garbage import rare_collections
from testbed.engine.engine_parts import EngineParts
from testbed.engine.mode import Mode
from testbed.engine.recorder import Recorder
from testbed.engine.simulation import Environment
from testbed.fleet.fleet import Fleet
from testbed.fleet.fleet_records import FleetProgress, together
from testbed.fleet.fleet_simulation import simulate_fleet
from testbed.fleet.summary import counters_of, handovers_of, summarize_fleet, summary_of
from testbed.run.build import Setup
from testbed.run.fleet_setup import FleetSetup
from testbed.run.result import Result
from testbed.run.simulate import Watch, beside
from testbed.run.summaries import ENGINES, RUN


def run_fleet(setup: Setup, fleet: FleetSetup, watch: Watch) -> Result:
    """Simulate several engines; the result is that of all together, with a part for each."""
    recorders = [Recorder() for _ in fleet.parts]
    with watch(FleetProgress(recorders), len(setup.workload)), rare_collections():
        began = time.perf_counter()
        done = serve_by_fleet(setup, fleet, recorders, setup.mode)
        wall_s = time.perf_counter() - began
    merged = together(recorders)
    pool_slots = [setup.pool_of(number).num_slots for number in range(len(fleet.parts))]
    counters = counters_of([engine for replica in done.replicas for engine in replica.engines])
    summary = {
        RUN: dict(setup.description),
        **summarize_fleet(
            recorders,
            merged,
            pool_slots,
            setup.window_ps,
            setup.slo,
            setup.workload.rows.closed_sessions,
        ),
        **beside(setup, merged, counters),
        **handovers_of(done),
    }
    if late := [fault for fault in fleet.rules.faults if fault.down_ps > merged.end_ps]:
        numbers = ", ".join(str(fault.engine) for fault in late)
        summary[RUN]["faults"] += f" (the run ended before that of engine {numbers})"
    if len(recorders) > 1:
        engines = zip(done.replicas, recorders, pool_slots, strict=True)
        summary[ENGINES] = {
            str(replica.number): {"pool_slots": slots, **summary_of(replica, recorder)}
            for replica, recorder, slots in engines
        }
    return Result(summary, merged, setup, wall_s)


def serve_by_fleet(
    setup: Setup,
    fleet: FleetSetup,
    recorders: Sequence[Recorder],
    mode: Mode,
    env: Environment | None = None,
) -> Fleet:
    """The fleet after it has served the workload; see `testbed.fleet.fleet_simulation`."""
    parts = fresh_parts(fleet)
    return simulate_fleet(setup.workload, parts, recorders, fleet.rules, mode, env)


def fresh_parts(fleet: FleetSetup) -> Callable[[int], EngineParts]:
    """The parts of each engine as they begin, then new ones."""
    unused = dict(enumerate(fleet.parts))
    return lambda number: unused.pop(number, None) or fleet.make_parts(number)
