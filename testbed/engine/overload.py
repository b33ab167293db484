"""Stops a run as soon as its mean normalized latency is certain to exceed a limit.

A waiting request's age is less than its latency will be, so the mean over all requests is at least
the sum of the finished ones' latencies and the others' ages, divided by their number: the stop is
exact, never a guess. A request's latency or age is normalized by its weight, 1 / output_len; the
ages of those that have arrived add up to now * sum(weight) - sum(weight * arrival).
"""

from typing import Any

import numpy as np

from testbed.core.request import PS, Request, Workload
from testbed.core.sequence import SequenceGroup
from testbed.engine.recorder import Recorder

LOOK_EVERY = 64


class Overloaded(Exception):
    """The mean normalized latency, in s/token, will be more than `at_least`."""

    def __init__(self, at_least: float, now_ps: int) -> None:
        super().__init__(at_least, now_ps)
        self.at_least = at_least
        self.now_ps = now_ps


class WatchfulRecorder(Recorder):
    """Raises Overloaded from within the run once the lower bound has passed `limit` s/token."""

    def __init__(self, workload: Workload, limit: float) -> None:
        super().__init__()
        self._limit_ps = limit * len(workload) * PS
        self._arrival_ps = workload.arrival_ps
        weights = 1 / workload.rows.output_len
        # Sums over the first i requests, in order of arrival
        self._weight_sums = np.append(0.0, np.cumsum(weights))
        self._arrival_sums = np.append(0.0, np.cumsum(weights * workload.arrival_ps))
        # Sums over the requests that have finished
        self._latency_sum = self._served_weight = self._served_arrivals = 0.0

    def served(self, request: Request, group: SequenceGroup, now_ps: int) -> None:
        super().served(request, group, now_ps)
        weight = 1 / request.output_len
        self._latency_sum += (now_ps - request.arrival_ps) * weight
        self._served_weight += weight
        self._served_arrivals += weight * request.arrival_ps
        if self.totals.finished % LOOK_EVERY == 0:
            self._look(now_ps)

    def rejected(self, *arguments: Any) -> None:
        """A rejected request has no latency, and then the bound would not hold."""
        super().rejected(*arguments)
        self._limit_ps = float("inf")

    def cancelled(self, *arguments: Any) -> None:
        """A cancelled request has no latency either."""
        super().cancelled(*arguments)
        self._limit_ps = float("inf")

    def _look(self, now_ps: int) -> None:
        arrived = int(np.searchsorted(self._arrival_ps, now_ps, side="right"))
        unfinished_weight = self._weight_sums[arrived] - self._served_weight
        unfinished_arrivals = self._arrival_sums[arrived] - self._served_arrivals
        bound_ps = self._latency_sum + unfinished_weight * now_ps - unfinished_arrivals
        if bound_ps > self._limit_ps:
            num_requests = len(self._weight_sums) - 1
            raise Overloaded(float(bound_ps) / PS / num_requests, now_ps)
