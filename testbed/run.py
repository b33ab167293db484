"""`run(config)`: build one run, simulate it, and sum it up."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import numpy as np

from testbed.build import Setup, build
from testbed.config import RunConfig
from testbed.core.errors import InputError
from testbed.core.request import PS
from testbed.cost.model import UNBOUNDED
from testbed.description import RUN
from testbed.engine.overload import Overloaded, WatchfulRecorder
from testbed.engine.recorder import Recorder
from testbed.engine.simulation import simulate
from testbed.metrics import overload, summarize
from testbed.result import Result

STOPPED = "stopped_at_latency"
PROFILE = "cost_profile"
COUNTERS = "counters"
OVERLOAD = "overload"
Watch = Callable[[Recorder, int], AbstractContextManager[None]]


def unwatched(recorder: Recorder, num_requests: int) -> AbstractContextManager[None]:
    """Nobody watches the event loop."""
    return nullcontext()


def run(config: RunConfig, watch: Watch = unwatched) -> Result:
    """Build and simulate one run: the one way in for command line, Python and studies.

    `watch` is entered with the recorder and the number of requests while the event loop runs.
    Raises InputError for a config that makes no sense, and for one of the GPU engine, whose runs
    need a folder (`run_into`).
    """
    if config.engine is not None:
        raise InputError(
            "engine: a GPU's run needs a run folder; say testbed run engine=gpu, or leave the "
            "engine out"
        )
    return run_setup(build(config), watch)


def run_setup(setup: Setup, watch: Watch = unwatched) -> Result:
    """Simulate what was built already."""
    config = setup.config
    limit = config.stop_at_latency
    recorder = Recorder() if limit is None else WatchfulRecorder(setup.workload, limit)
    start_ps, stop_ps = setup.window_ps or (UNBOUNDED, UNBOUNDED)
    overloaded = None
    pool = None if config.policy.is_instance else setup.pool  # a made policy has its own
    with watch(recorder, len(setup.workload)):
        began = time.perf_counter()
        try:
            simulate(
                setup.workload,
                setup.scheduler,
                setup.cost,
                setup.model.max_len,
                recorder=recorder,
                pool=pool,
                fast_forward=config.fast_forward,
                beams=setup.beams,
                snapshots_ps=[start_ps],
                stop_ps=stop_ps,
                lengths=setup.lengths,
            )
        except Overloaded as stopped:
            overloaded, recorder.end_ps = stopped.at_least, stopped.now_ps
        wall_s = time.perf_counter() - began
    summary = summarize(recorder, setup.pool.num_slots, setup.window_ps, setup.slo)
    profile = getattr(setup.cost, "fingerprint", None)
    counters = dict(setup.scheduler.policy.counters())
    columns = recorder.requests.columns()
    first_s = np.where(columns["first_token_ps"] < 0, np.nan, columns["first_token_ps"] / PS)
    behind = overload(columns["arrival_ps"] / PS, first_s)
    extra = {STOPPED: overloaded, OVERLOAD: behind, PROFILE: profile, COUNTERS: counters}
    return Result({RUN: dict(setup.description), **summary, **extra}, recorder, setup, wall_s)


@cache
def keys_of_every_summary() -> frozenset[str]:
    """What a run without any request writes, every run does."""
    return frozenset(summarize(Recorder(), num_slots=1)) | {RUN, STOPPED, PROFILE, COUNTERS}
