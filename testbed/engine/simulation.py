"""One run: a workload, and an engine of its parts."""

from collections.abc import Iterable, Mapping
from typing import Any

from simpy import Environment as Environment

from testbed.core.request import Request
from testbed.cost.model import CostModel
from testbed.engine.arrivals import AnswerDrivenWorkload
from testbed.engine.audit import check_policy
from testbed.engine.clients import client_of
from testbed.engine.clock import Clock
from testbed.engine.engine import Engine
from testbed.engine.engine_parts import EngineParts
from testbed.engine.links import NO_LINKS, SharedLink
from testbed.engine.mode import WHOLE_RUN, Mode
from testbed.engine.outputs import Outputs
from testbed.engine.recorder import Recorder
from testbed.engine.sim_clock import SimClock
from testbed.engine.simulated import SimulatedExecutor
from testbed.memory.pools import PoolSpec
from testbed.sched.beam_search import BeamModel, SyntheticBeams
from testbed.sched.scheduler import Scheduler
from testbed.speculation.acceptance import Acceptance


def simulate(
    requests: Iterable[Request],
    scheduler: Scheduler,
    cost: CostModel,
    max_len: int,
    *,
    beams: BeamModel | None = None,
    lengths: dict[int, int] | None = None,
    acceptance: Acceptance | None = None,
    pool: PoolSpec | None = None,
    recorder: Recorder | None = None,
    env: Environment | None = None,
    **mode: Any,
) -> Recorder:
    """`simulate_parts` of an engine of these parts, in the `Mode` of these fields; a caller's
    recorder can be observed too.
    """
    parts = EngineParts(
        scheduler, cost, max_len, beams or SyntheticBeams(), lengths, pool, acceptance
    )
    recorder = recorder or Recorder()
    simulate_parts(requests, parts, recorder, Mode(**mode), env)
    return recorder


def simulate_parts(
    requests: Iterable[Request],
    parts: EngineParts,
    recorder: Recorder,
    mode: Mode = WHOLE_RUN,
    env: Environment | None = None,
) -> None:
    """Serve `requests`, in order of arrival, until all have ended or the mode's stop_ps has passed.
    env: SimPy's, which a caller may observe during the run.

    Requests of a closed loop's workload arrive when the answers that they wait for have come,
    whatever their arrival_ps.
    """
    clock = SimClock(env)
    engine = simulated_engine(clock, parts, recorder, mode)
    if env is None and not isinstance(requests, AnswerDrivenWorkload):
        engine.follow(requests, closes=True)
    else:
        client_of(clock, engine, requests).start()
    clock.env.run(until=clock.start(engine.serve()))


def simulated_engine(
    clock: Clock,
    parts: EngineParts,
    recorder: Recorder,
    mode: Mode = WHOLE_RUN,
    links: Mapping[str, SharedLink] = NO_LINKS,
) -> Engine:
    """An engine whose iterations take simulated time on this clock, which others may share. links:
    of the tiers that other engines use too, by name.
    """
    scheduler = parts.scheduler
    check_policy(scheduler.memory, parts.max_len, parts.pool)
    outputs = Outputs(scheduler.state, parts.beams, parts.lengths, parts.acceptance)
    executor = SimulatedExecutor(clock, scheduler, parts.cost, outputs, parts.pool, links)
    return Engine(scheduler, executor, outputs, recorder, parts.max_len, mode)
