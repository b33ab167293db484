"""One run: a workload, a scheduler with its policy, a cost model."""

from collections.abc import Iterable

from simpy import Environment as Environment

from testbed.core.request import Request
from testbed.cost.model import UNBOUNDED, CostModel
from testbed.engine.arrivals import SessionWorkload
from testbed.engine.audit import check_policy
from testbed.engine.clients import ClosedLoop, open_loop
from testbed.engine.engine import Engine
from testbed.engine.meter import Meter, PlainMeter
from testbed.engine.outputs import Outputs
from testbed.engine.recorder import Recorder
from testbed.engine.span_meter import SpanMeter
from testbed.memory.pools import PoolSpec
from testbed.sched.beams import BeamModel, SyntheticBeams
from testbed.sched.scheduler import Scheduler


def simulate(
    requests: Iterable[Request],
    scheduler: Scheduler,
    cost: CostModel,
    max_len: int,
    *,
    marks_ps: Iterable[int] = (),
    stop_ps: int = UNBOUNDED,
    pool: PoolSpec | None = None,
    fast_forward: bool = True,
    beams: BeamModel | None = None,
    recorder: Recorder | None = None,
    env: Environment | None = None,
    lengths: dict[int, int] | None = None,
) -> Recorder:
    """Serve `requests`, in order of arrival, until all have ended or stop_ps has passed.

    Those of a SessionWorkload arrive when the answers that they wait for have come, whatever their
    arrival_ps says. `beams` says which candidates of a beam survive; by default SyntheticBeams().
    Without fast_forward every iteration is one event and the pool is measured by walking every
    table; the result is the same. The policy is checked with `pool`, its configured pool, where
    that is given. A caller's recorder or environment can be observed during the run. `lengths` is
    filled with the true output lengths of the requests that are being served: what the oracles of
    the run were built with, if there are any.
    """
    check_policy(scheduler.memory, max_len, pool)
    env = env or Environment(0)
    recorder = recorder or Recorder()
    outputs = Outputs(scheduler.state, beams or SyntheticBeams(), lengths)
    spans = fast_forward and scheduler.memory.measures_spans
    meter: Meter = SpanMeter(scheduler, outputs) if spans else PlainMeter(scheduler, outputs)
    engine = Engine(env, scheduler, cost, meter, recorder, max_len, marks_ps, stop_ps, pool)
    if isinstance(requests, SessionWorkload):
        ClosedLoop(env, engine, requests).start()
    else:
        env.process(open_loop(env, engine, requests))
    env.run(until=env.process(engine.serve()))
    return recorder
