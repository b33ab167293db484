"""The sensitivity of a replayed log to costs and arrivals, as testbed.study.cost_spread says."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property

import numpy as np

from testbed.core.request import Rows
from testbed.experiments.real.validation.deviations import metrics
from testbed.experiments.real.validation.log_replay import Replayed, fitted_machine, replay
from testbed.run.config import RunConfig
from testbed.study.cost_spread import Draw
from testbed.study.sensitivity import Interval, moved_s
from testbed.traces.vllm_log import Times, VllmLog

PREEMPTIONS = "preemptions"


class MovedLog(VllmLog):
    """A log whose arrivals are moved at random, by a seed."""

    def __init__(self, log: VllmLog, seed: int) -> None:
        super().__init__(log.path, log.workload)
        self._log, self._seed = log, seed

    @cached_property
    def _served(self) -> tuple[Rows, Times]:
        rows, times = self._log.read(), self._log.times
        arrival_s = moved_s(times.arrival_s, self._seed)
        order = np.argsort(arrival_s, kind="stable")
        arrival_s = arrival_s[order] - arrival_s.min()
        return (
            replace(rows.take(order), arrival_s=arrival_s),
            times.take(order)._replace(arrival_s=arrival_s),
        )


def intervals(
    log: VllmLog, config: RunConfig, unchanged: Replayed, draws: Iterable[Draw]
) -> dict[str, Interval]:
    """The smallest and the largest value of each metric over these runs, preemptions among them."""
    runs = [measured(unchanged), *map(measured, _varied(log, config, draws))]
    return {
        name: (min(run[name] for run in runs), max(run[name] for run in runs)) for name in runs[0]
    }


def measured(run: Replayed) -> dict[str, float]:
    """A run's latencies and its preemptions."""
    return {**metrics(run.times), PREEMPTIONS: float(run.preemptions)}


def _varied(log: VllmLog, config: RunConfig, draws: Iterable[Draw]) -> Iterator[Replayed]:
    machine = fitted_machine(config, log)
    for draw in draws:
        moved = log if draw.seed is None else MovedLog(log, draw.seed)
        slower = machine._replace(slowness=machine.slowness * draw.slowness)
        yield replay(moved, draw.of(config), slower)
