"""Fits the times of a server to its log: least squares on TTFT and TPOT of every request.

An iteration takes factor x kernels + its software time; the constants of a front end are added.

The method is Gauss-Newton. TTFT has many local minima: a request waits for whole iterations, so its
error jumps by one iteration if the simulation admits it sooner or later. TPOT is a mean over
many iterations, and smooth. So the fit starts from two points, all times at zero and the result of
a fit to TPOT alone, and keeps the better end.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from testbed.experiments.real.validation.gauss_newton import (
    Correlations,
    Errors,
    Matrix,
    Point,
    descend,
    uncertainty,
)
from testbed.experiments.real.validation.log_replay import LoggedMachine, Replayed, replay
from testbed.run.config import RunConfig
from testbed.traces.vllm_log import Times, VllmLog

ITERATION = "iteration"
FRONT = ("before_first", "after_last")  # the front end's times
OF_LOAD = {"overhead_per_request_s": 0.0, "overhead_per_token_s": 0.0}  # which are not fitted
TPOT, BOTH = slice(1, None), slice(None)  # which of (TTFT, TPOT) a fit looks at
UNIT_S = {ITERATION: 1e-3, "before_first": 1e-2, "after_last": 1e-2}
LEAST_FACTOR = 0.05
KERNELS = "kernels"  # of which the factor is
ALIKE = 0.9  # correlation beyond which two times cannot be separated


@dataclass
class Problem:
    """A log with its server's config.

    until_s: requests that ended later in their log (s) are left out. simulated: the runs so far;
    best: the least root mean square error so far.
    """

    log: VllmLog
    config: RunConfig
    until_s: float = float("inf")
    simulated: int = 0
    best: float = float("inf")

    @cached_property
    def names(self) -> list[str]:
        """The times to fit; a log of the engine alone has no front end."""
        return [ITERATION, *(() if self.log.is_of_engine else FRONT)]

    @property
    def scale(self) -> Matrix:
        """The unit of each unknown, so that all have about the same size."""
        return np.array([UNIT_S[name] for name in self.names] + [1.0])

    def named(self, values: Matrix) -> tuple[dict[str, float], float]:
        """Times in seconds by name, none below zero; the factor of the kernels."""
        times = dict(zip(self.names, values[:-1].clip(0.0).tolist(), strict=True))
        return times, max(float(values[-1]), LEAST_FACTOR)

    def progress(self) -> str:
        """The state of the fit in one line."""
        rest = (
            f", {100 * self.best:.1f}% of a request's times remain"
            if np.isfinite(self.best)
            else ""
        )
        return f"fitting: {self.simulated} simulations{rest}"


@dataclass(frozen=True)
class Fitted:
    """The result of a fit.

    times_s: seconds by name, without those that would be below zero. factor: of all kernels.
    standard_errors: of both. correlations: of pairs of them.
    """

    times_s: dict[str, float]
    factor: float
    standard_errors: Errors
    correlations: Correlations

    @property
    def alike(self) -> Correlations:
        """Pairs that this log cannot separate, with their correlation."""
        return {pair: value for pair, value in self.correlations.items() if abs(value) > ALIKE}


def fit(problem: Problem) -> Fitted:
    """Fit the times, none of them below zero, and the factor of the kernels."""
    best = _best_point(problem)
    times, factor = problem.named(best.values)
    kept = [i for i, name in enumerate(problem.names) if times[name] > 0]
    columns = [*kept, len(problem.names)]
    labels = [*(problem.names[i] for i in kept), KERNELS]
    errors, correlations = uncertainty(
        labels, best.rest, best.jacobian[:, columns], problem.scale[columns]
    )
    times_s = {problem.names[i]: times[problem.names[i]] for i in kept}
    return Fitted(times_s, factor, errors, correlations)


def _best_point(problem: Problem) -> Point:
    """The better end of two descents: from all times at zero, and from a fit to TPOT alone."""

    def descend_from(start: Matrix, kinds: slice) -> Point:
        return descend(lambda values: _point_at(problem, values, kinds), start, problem.scale)

    as_the_profile = np.array([0.0] * len(problem.names) + [1.0])
    after_tpot = descend_from(as_the_profile, TPOT).values
    ends = [descend_from(start, BOTH) for start in (as_the_profile, after_tpot)]
    return min(ends, key=lambda point: point.error)


def _point_at(problem: Problem, values: Matrix, kinds: slice) -> Point:
    """The errors that these values of the unknowns leave, and their derivatives.

    An error is that of one request's TTFT or TPOT, relative to the mean of the log. The derivatives
    hold for an unchanged schedule: between two moments of a request lie some iterations, and a
    software time counts as often.
    """
    times, factor = problem.named(values)
    replayed = _replayed(problem, times, factor)
    moved_until = _moved_until(replayed, problem, times, factor)
    intervals = zip(
        _intervals(replayed.times),
        _intervals(replayed.engine_times),
        _intervals(problem.log.times),
        strict=True,
    )
    residuals, jacobians = [], []
    for simulated, engine, real in list(intervals)[kinds]:
        real_s = (real.end - real.begin) / real.steps
        is_counted = real.end <= problem.until_s
        moved = moved_until(engine.end) - moved_until(engine.begin)
        if simulated.front_end in problem.names:
            moved[:, problem.names.index(simulated.front_end)] = 1.0
        mean_s = real_s[is_counted].mean()
        simulated_s = (simulated.end - simulated.begin) / simulated.steps
        residuals.append(((simulated_s - real_s) / mean_s)[is_counted])
        jacobians.append((moved / (simulated.steps * mean_s)[:, None])[is_counted])
    problem.simulated += 1
    rest = np.concatenate(residuals)
    if kinds == BOTH:
        problem.best = min(problem.best, float(np.sqrt((rest**2).mean())))
    return Point(values, rest, np.concatenate(jacobians))


def _replayed(problem: Problem, times: Mapping[str, float], factor: float) -> Replayed:
    """The log simulated with this software time, front end and factor."""
    # Replay applies a slowness to all, the factor is that of the kernels alone.
    software = {"overhead_s": times[ITERATION] / factor, **OF_LOAD}
    cost = problem.config.cost
    charged = cost.parameters["software"].updated(**software)
    before, after = (times.get(name, 0.0) for name in FRONT)
    changed = replace(problem.config, cost=cost.updated(software=charged))
    return replay(problem.log, changed, LoggedMachine({0: before}, after, factor))


class Interval(NamedTuple):
    """The interval that TTFT or TPOT measures, for each request.

    begin, end: seconds; steps: the number of tokens between them; front_end: the time of the front
    end that lies in the interval.
    """

    begin: Matrix
    end: Matrix
    steps: Matrix
    front_end: str


def _intervals(times: Times) -> list[Interval]:
    """The intervals of TTFT and of TPOT; a request of one token has no TPOT."""
    several = times.output_len > 1
    steps = (times.output_len[several] - 1).astype(np.float64)
    first, finish = times.first_token_s, times.finish_s
    before, after = FRONT
    return [
        Interval(times.arrival_s, first, np.ones(len(first)), before),
        Interval(first[several], finish[several], steps, after),
    ]


def _moved_until(
    replayed: Replayed, problem: Problem, times: Mapping[str, float], factor: float
) -> Callable[[Matrix], Matrix]:
    """A function of moments (s, of the engine): the derivative of each moment by each unknown.

    A software time delays a moment by the number of iterations up to it, the factor by the busy
    time of the kernels up to it.
    """
    spans = replayed.spans
    steps = spans["iterations"].astype(np.float64)
    busy, nothing = spans["duration_s"], np.zeros(len(steps))
    moved = [steps if name == ITERATION else nothing for name in problem.names]
    moved.append(busy - times[ITERATION] / factor * steps)
    begun = spans["start_s"]
    moments = np.stack([begun, begun + busy], axis=1).ravel()
    sums = [np.cumsum(np.stack([nothing, growth], axis=1).ravel()) for growth in moved]
    return lambda when: np.stack([np.interp(when, moments, total) for total in sums], axis=1)
