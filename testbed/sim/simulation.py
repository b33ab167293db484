"""One run: a workload, a scheduler with its policy, a cost model."""

from collections.abc import Iterable

import simpy

from testbed.core.request import Request
from testbed.cost.model import UNBOUNDED, CostModel
from testbed.sched.scheduler import Scheduler
from testbed.sim.arrivals import open_loop
from testbed.sim.engine import Engine
from testbed.sim.meter import Meter, PlainMeter, SpanMeter
from testbed.sim.recorder import Recorder


def simulate(
    requests: Iterable[Request],
    scheduler: Scheduler,
    cost: CostModel,
    max_len: int,
    *,
    marks_ps: Iterable[int] = (),
    stop_ps: int = UNBOUNDED,
    fast_forward: bool = True,
    recorder: Recorder | None = None,
    env: simpy.Environment | None = None,
) -> Recorder:
    """Serve `requests`, in order of arrival, until all have ended or stop_ps has passed.

    Without fast_forward every iteration is one event and the pool is measured by walking every table; the result is
    the same. A recorder or an environment given from outside can be watched while the run goes on.
    """
    env = env or simpy.Environment(0)
    recorder = recorder or Recorder()
    spans = fast_forward and answers_waste(scheduler)
    meter: Meter = SpanMeter(scheduler) if spans else PlainMeter(scheduler)
    max_steps = UNBOUNDED if spans else 1
    engine = Engine(env, scheduler, cost, meter, recorder, max_len, marks_ps, stop_ps, max_steps)
    env.process(open_loop(env, engine, requests))
    env.run(until=env.process(engine.serve()))
    return recorder


def answers_waste(scheduler: Scheduler) -> bool:
    """Whether the policy has its own `waste`, so that its memory can be measured over whole spans."""
    from testbed.memory.policy import MemoryPolicy

    return type(scheduler.policy).waste is not MemoryPolicy.waste
