"""One run: simulate what was built, and sum it up."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from testbed.build import Setup
from testbed.core.request import PS
from testbed.cost.model import UNBOUNDED
from testbed.description import RUN
from testbed.engine.overload import Overloaded, WatchfulRecorder
from testbed.engine.recorder import Recorder
from testbed.engine.simulation import simulate
from testbed.metrics import overload, summarize

STOPPED = "stopped_at_latency"
PROFILE = "cost_profile"
COUNTERS = "counters"
OVERLOAD = "overload"
Watch = Callable[[Recorder, int], AbstractContextManager[None]]


@dataclass(frozen=True)
class Run:
    """What a simulation gave. wall_s is the time of the event loop alone."""

    recorder: Recorder
    summary: dict[str, Any]
    wall_s: float


def run(setup: Setup, watch: Watch = lambda recorder, num_requests: nullcontext()) -> Run:
    """Simulate; `watch` is entered with the recorder and the number of requests while the event
    loop runs.
    """
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
                marks_ps=[start_ps],
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
    return Run(recorder, {RUN: dict(setup.description), **summary, **extra}, wall_s)


@cache
def keys_of_every_summary() -> frozenset[str]:
    """What a run without any request writes, every run does."""
    return frozenset(summarize(Recorder(), num_slots=1)) | {RUN, STOPPED, PROFILE, COUNTERS}
