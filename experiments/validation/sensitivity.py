"""How much a simulated figure depends on what nobody knows exactly.

Near the load at which memory runs short, a small error of the costs becomes a large one of the
latencies. The same log is replayed with all costs COST_ERROR up and down, and with arrivals that
are moved at random; the interval of a metric goes from the smallest to the largest of these runs
and of the one as it is. The rule looks at no measurement.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

import numpy as np

from testbed.config import RunConfig
from testbed.core.request import Rows
from testbed.experiments.validation.deviations import metrics
from testbed.experiments.validation.log_replay import Replayed, fitted_machine, replay
from testbed.traces.vllm_log import Times, VllmLog

COST_ERROR = 0.03
MOVED_S = 0.010  # arrivals are moved by at most so much
RESAMPLINGS = 20
PREEMPTIONS = "preemptions"
Interval = tuple[float, float]


class MovedLog(VllmLog):
    """A log whose arrivals are moved by up to MOVED_S either way, drawn by a seed."""

    def __init__(self, log: VllmLog, seed: int) -> None:
        super().__init__(log.path, log.workload)
        self._log, self._seed = log, seed

    @cached_property
    def _served(self) -> tuple[Rows, Times]:
        rows, times = self._log.read(), self._log.times
        moved = np.random.default_rng(self._seed).uniform(-MOVED_S, MOVED_S, len(times.arrival_s))
        arrival_s = np.maximum(times.arrival_s + moved, 0)
        order = np.argsort(arrival_s, kind="stable")
        arrival_s = arrival_s[order] - arrival_s.min()
        return (
            replace(rows.take(order), arrival_s=arrival_s),
            times.take(order)._replace(arrival_s=arrival_s),
        )


def intervals(log: VllmLog, config: RunConfig, unchanged: Replayed) -> dict[str, Interval]:
    """The smallest and the largest value of each metric, preemptions among them."""
    runs = [measured(unchanged), *map(measured, _varied(log, config))]
    return {
        name: (min(run[name] for run in runs), max(run[name] for run in runs)) for name in runs[0]
    }


def measured(run: Replayed) -> dict[str, float]:
    """A run's latencies and its preemptions."""
    return {**metrics(run.times), PREEMPTIONS: float(run.preemptions)}


def _varied(log: VllmLog, config: RunConfig) -> Iterator[Replayed]:
    machine = fitted_machine(config, log)
    for factor in (1 - COST_ERROR, 1 + COST_ERROR):
        yield replay(log, config, machine._replace(slowness=machine.slowness * factor))
    for seed in range(RESAMPLINGS):
        yield replay(MovedLog(log, seed), config, machine)
