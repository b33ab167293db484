"""`run(config)`: build one run, simulate it, and sum it up."""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, Protocol, TypeVar

import numpy as np

from testbed.core.errors import InputError
from testbed.core.garbage import rare_collections
from testbed.core.request import PS
from testbed.engine.mode import Mode
from testbed.engine.overload import Overloaded, WatchfulRecorder
from testbed.engine.recorder import Recorder
from testbed.engine.simulation import Environment, simulate_parts
from testbed.engine.totals import Totals
from testbed.run.build import Setup, build
from testbed.run.config import RunConfig
from testbed.run.metrics import WHILE_ARRIVING, filling_s, overload, summarize
from testbed.run.result import Result
from testbed.run.speculating import drafts_of
from testbed.run.summaries import PROFILE, RUN, profile_of

STOPPED = "stopped_at_latency"
COUNTERS = "counters"
OVERLOAD = "overload"
FILLING = "filling_s"
LATER = {
    "itl_s",
    "itl_max_s",
    "tokens_per_s_per_user",
    WHILE_ARRIVING,
}  # which the folders that ship lack


class Counts(Protocol):
    """Counts of a run that can be watched: a recorder, or those of a fleet."""

    @property
    def totals(self) -> Totals:
        """Sums since the start."""


Watch = Callable[[Counts, int], AbstractContextManager[None]]
OneRecorder = TypeVar("OneRecorder", bound=Recorder)


def unwatched(recorder: Counts, num_requests: int) -> AbstractContextManager[None]:
    """Does not watch the event loop."""
    return nullcontext()


def run(config: RunConfig, watch: Watch = unwatched) -> Result:
    """Build and simulate one run: the one way in for command line, Python and studies.

    `watch` is entered with the recorder and the number of requests while the event loop runs.
    Raises InputError for a config that makes no sense, and for one of the GPU engine, whose runs
    need a folder (`run_into`).
    """
    if config.engine is not None:
        raise InputError(
            key="engine",
            problem=(
                "a GPU's run needs a run folder; say testbed run engine=gpu, or leave the engine "
                "out"
            ),
        )
    return run_setup(build(config), watch)


def run_setup(setup: Setup, watch: Watch = unwatched) -> Result:
    """Simulate what was built already."""
    if setup.fleet is not None:
        from testbed.run.fleet_run import run_fleet  # most runs have one engine

        return run_fleet(setup, setup.fleet, watch)
    limit = setup.config.stop_at_latency
    recorder = Recorder() if limit is None else WatchfulRecorder(setup.workload, limit)
    overloaded = None
    with watch(recorder, len(setup.workload)), rare_collections():
        began = time.perf_counter()
        try:
            simulate_parts(setup.workload, setup.parts, recorder, setup.mode)
        except Overloaded as stopped:
            overloaded, recorder.end_ps = stopped.at_least, stopped.now_ps
            recorder.settle()
        wall_s = time.perf_counter() - began
    return Result(_summary(setup, recorder, overloaded), recorder, setup, wall_s)


def _summary(setup: Setup, recorder: Recorder, overloaded: float | None) -> dict[str, Any]:
    """The summary of a run. overloaded: the latency at which it was stopped, if it was."""
    summary = summarize(
        recorder,
        setup.pool.num_slots,
        setup.window_ps,
        setup.slo,
        setup.workload.rows.closed_sessions,
    )
    extra = beside(setup, recorder, setup.scheduler.policy.counters())
    extra |= {STOPPED: overloaded, **drafts_of(setup.scheduler)}
    return {RUN: dict(setup.description), **summary, **extra}


def beside(setup: Setup, recorder: Recorder, counters: Mapping[str, float]) -> dict[str, Any]:
    """The numbers of a summary beside those that `summarize` counts. counters: of the policies."""
    return {
        STOPPED: None,
        OVERLOAD: behind(recorder),
        FILLING: filling_s(recorder.requests),
        PROFILE: profile_of(setup.cost),
        COUNTERS: dict(counters),
    }


def recorded(
    setup: Setup,
    make_recorder: Callable[[], OneRecorder],
    mode: Mode,
    env: Environment | None = None,
) -> list[OneRecorder]:
    """The recorder of each engine, after these have served the workload. env: SimPy's, whose events
    a caller may watch.
    """
    if setup.fleet is None:
        recorder = make_recorder()
        simulate_parts(setup.workload, setup.parts, recorder, mode, env)
        return [recorder]
    from testbed.run.fleet_run import serve_by_fleet

    recorders = [make_recorder() for _ in setup.fleet.parts]
    serve_by_fleet(setup, setup.fleet, recorders, mode, env)
    return recorders


def behind(recorder: Recorder) -> dict[str, float] | None:
    """See `testbed.run.metrics.overload`; a rejected request never waits."""
    columns = recorder.requests.columns()
    request_ids = columns["request_id"].tolist()
    accepted = np.array([number not in recorder.rejections for number in request_ids], np.bool_)
    first_ps = columns["first_token_ps"][accepted]
    first_s = np.where(first_ps < 0, np.nan, first_ps / PS)
    return overload(columns["arrival_ps"][accepted] / PS, first_s)


@cache
def keys_of_every_summary() -> frozenset[str]:
    """Every run writes the keys of a run without any request, but for LATER keys."""
    keys = frozenset(summarize(Recorder(), num_slots=1)) | {RUN, STOPPED, PROFILE, COUNTERS}
    return keys - LATER
