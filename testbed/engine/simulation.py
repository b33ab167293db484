"""One run: a workload, a scheduler with its policy, a cost model."""

from collections.abc import Iterable, Mapping
from typing import TypedDict, Unpack

from simpy import Environment as Environment

from testbed.core.request import Request
from testbed.cost.model import UNBOUNDED, CostModel
from testbed.engine.arrivals import AnswerDrivenWorkload
from testbed.engine.audit import check_policy
from testbed.engine.clients import client_of
from testbed.engine.clock import Clock
from testbed.engine.engine import Engine
from testbed.engine.links import NO_LINKS, SharedLink
from testbed.engine.outputs import Outputs
from testbed.engine.recorder import Recorder
from testbed.engine.sim_clock import SimClock
from testbed.engine.simulated import SimulatedExecutor
from testbed.memory.pools import PoolSpec
from testbed.sched.beam_search import BeamModel, SyntheticBeams
from testbed.sched.scheduler import Scheduler
from testbed.speculation.acceptance import Acceptance


class EngineOptions(TypedDict, total=False):
    """The mode of an engine.

    beams: which candidates of a beam survive; by default SyntheticBeams(). lengths: filled with the
    true output lengths of the requests that are being served: what the oracles of the run were
    built with, if there are any. acceptance: how many drafts the model accepts, for a scheduler
    that plans some. pool: the policy's configured pool, with which it is checked. links: of the
    tiers that other engines use too, by name. Without fast_forward every iteration is one event and
    the pool is measured by walking every table; the result is the same. snapshots_ps: times at
    which totals are kept. stop_ps: the end, if requests may be left.
    """

    beams: BeamModel | None
    lengths: dict[int, int] | None
    acceptance: Acceptance | None
    pool: PoolSpec | None
    links: Mapping[str, SharedLink]
    fast_forward: bool
    snapshots_ps: Iterable[int]
    stop_ps: int


def simulate(
    requests: Iterable[Request],
    scheduler: Scheduler,
    cost: CostModel,
    max_len: int,
    *,
    recorder: Recorder | None = None,
    env: Environment | None = None,
    **options: Unpack[EngineOptions],
) -> Recorder:
    """Serve `requests`, in order of arrival, until all have ended or stop_ps has passed.

    Requests of a closed loop's workload arrive when the answers that they wait for have come,
    whatever their arrival_ps. A caller's recorder or environment can be observed during the run.
    """
    clock, recorder = SimClock(env), recorder or Recorder()
    engine = simulated_engine(clock, scheduler, cost, max_len, recorder, **options)
    if env is None and not isinstance(requests, AnswerDrivenWorkload):
        engine.follow(requests, closes=True)
    else:
        client_of(clock, engine, requests).start()
    clock.env.run(until=clock.start(engine.serve()))
    return engine.recorder


def simulated_engine(
    clock: Clock,
    scheduler: Scheduler,
    cost: CostModel,
    max_len: int,
    recorder: Recorder,
    *,
    beams: BeamModel | None = None,
    lengths: dict[int, int] | None = None,
    acceptance: Acceptance | None = None,
    pool: PoolSpec | None = None,
    links: Mapping[str, SharedLink] = NO_LINKS,
    fast_forward: bool = True,
    snapshots_ps: Iterable[int] = (),
    stop_ps: int = UNBOUNDED,
) -> Engine:
    """An engine whose iterations take simulated time on this clock, which others may share; see
    EngineOptions.
    """
    check_policy(scheduler.memory, max_len, pool)
    outputs = Outputs(scheduler.state, beams or SyntheticBeams(), lengths, acceptance)
    executor = SimulatedExecutor(clock, scheduler, cost, outputs, pool, links)
    return Engine(
        scheduler,
        executor,
        outputs,
        recorder,
        max_len,
        fast_forward=fast_forward,
        snapshots_ps=snapshots_ps,
        stop_ps=stop_ps,
    )
