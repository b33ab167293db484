"""Fits the times of a server to its logs: least squares on TTFT and TPOT of every request.

With several logs, an iteration takes slowness x (kernels + software times), and each log has its
own slowness. With one log whose kernels are scaled, it takes slowness x kernels + software times.
The constants of a front end are added to both.

The method is Gauss-Newton. TTFT has many local minima: a request waits for whole iterations, so its
error jumps by one iteration if the simulation admits it sooner or later. TPOT is a mean over
many iterations, and smooth. So the fit starts from two points, all times at zero and the result of
a fit to TPOT alone, and keeps the better end.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from testbed.core.errors import InputError
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

# The times of iterations that can be fitted, with their keys in cost.choices; and the front end's.
KEYS = {
    "iteration": "overhead_s",
    "request": "overhead_per_request_s",
    "token": "overhead_per_token_s",
}
FRONT = ("before_first", "after_last")
TPOT, BOTH = slice(1, None), slice(None)  # which of (TTFT, TPOT) a fit looks at
UNIT_S = {
    "iteration": 1e-3,
    "request": 1e-4,
    "token": 1e-5,
    "before_first": 1e-2,
    "after_last": 1e-2,
}
LEAST_SLOWNESS = 0.05
ALIKE = 0.9  # correlation beyond which two times cannot be separated


@dataclass
class Problem:
    """Logs with their servers' configs, and the names of the times to fit.

    Each of several logs has a slowness; their product is 1, so the profile's kernels fit the
    machine in the middle. scales: a single log also has a slowness, which scales the profile's
    kernels. until_s: requests that ended later in their log (s) are left out. simulated: the runs
    so far; best: the least root mean square error so far.
    """

    logs: Sequence[VllmLog]
    configs: Sequence[RunConfig]
    names: Sequence[str]
    scales: bool = False
    until_s: float = float("inf")
    simulated: int = 0
    best: float = float("inf")

    @property
    def free(self) -> Sequence[int]:
        """The logs whose slowness is an unknown; that of the first of several follows."""
        return [0] if self.scales else range(1, len(self.logs))

    @property
    def scale(self) -> Matrix:
        """The unit of each unknown, so that all have about the same size."""
        return np.array([UNIT_S[name] for name in self.names] + [1.0] * len(self.free))

    def named(self, values: Matrix) -> tuple[dict[str, float], list[float]]:
        """Times in seconds by name, none below zero; the slowness of each log."""
        times = dict(zip(self.names, values.clip(0.0).tolist(), strict=False))
        slowness = values[len(self.names) :].clip(LEAST_SLOWNESS)
        if self.scales:
            return times, slowness.tolist()
        return times, [float(1 / slowness.prod()), *slowness.tolist()]

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

    times_s: seconds by name, without those that would be below zero. slowness: by the log's path.
    standard_errors: of both, except the slowness of the first of several logs. correlations: of
    pairs of times. error: root mean square of the remaining relative errors.
    """

    times_s: dict[str, float]
    slowness: dict[str, float]
    standard_errors: Errors
    correlations: Correlations
    error: float

    @property
    def alike(self) -> Correlations:
        """Pairs that these logs cannot separate, with their correlation."""
        return {pair: value for pair, value in self.correlations.items() if abs(value) > ALIKE}


def front_ends(logs: Sequence[VllmLog]) -> Sequence[str]:
    """The names of the front end's times; none if all logs are of the engine alone."""
    return () if all(log.is_of_engine for log in logs) else FRONT


def fit(problem: Problem) -> Fitted:
    """Fit the named times, none of them below zero, and the slowness of each log."""
    best = _best_point(problem)
    times, slowness = problem.named(best.values)
    kept = [i for i, name in enumerate(problem.names) if times[name] > 0]
    if not kept and not problem.scales:
        raise InputError(
            key="the profile",
            problem="its costs are more than the logs took: none is left for software",
            remedy="calibrate fit profile scales kernels",
        )
    columns = [*kept, *range(len(problem.names), len(best.values))]
    labels = [*(problem.names[i] for i in kept), *(problem.logs[i].path for i in problem.free)]
    errors, correlations = uncertainty(
        labels, best.rest, best.jacobian[:, columns], problem.scale[columns]
    )
    times_s = {problem.names[i]: times[problem.names[i]] for i in kept}
    by_log = {
        log.path: value for log, value in zip(problem.logs, slowness, strict=True) if problem.free
    }
    return Fitted(
        times_s=times_s,
        slowness=by_log,
        standard_errors=errors,
        correlations=correlations,
        error=float(np.sqrt((best.rest**2).mean())),
    )


def _best_point(problem: Problem) -> Point:
    """The better end of two descents: from all times at zero, and from a fit to TPOT alone."""

    def descend_from(start: Matrix, kinds: slice) -> Point:
        return descend(
            lambda values: _point_at(problem, values, kinds),
            start,
            problem.scale,
            len(problem.names),
        )

    as_the_profile = np.array([0.0] * len(problem.names) + [1.0] * len(problem.free))
    after_tpot = descend_from(as_the_profile, TPOT).values
    ends = [descend_from(start, BOTH) for start in (as_the_profile, after_tpot)]
    return min(ends, key=lambda point: point.error)


def _point_at(problem: Problem, values: Matrix, kinds: slice) -> Point:
    """The errors that these values of the unknowns leave, and their derivatives.

    An error is that of one request's TTFT or TPOT, relative to the mean of its log.
    """
    times, slowness = problem.named(values)
    residuals, jacobians = list[Matrix](), list[Matrix]()
    for number in range(len(problem.logs)):
        of_log = _errors_of_log(problem, number, times, slowness, kinds)
        residuals += of_log[0]
        jacobians += of_log[1]
    problem.simulated += len(problem.logs)
    rest = np.concatenate(residuals)
    if kinds == BOTH:
        problem.best = min(problem.best, float(np.sqrt((rest**2).mean())))
    return Point(values, rest, np.concatenate(jacobians))


def _errors_of_log(
    problem: Problem,
    number: int,
    times: Mapping[str, float],
    slowness: Sequence[float],
    kinds: slice,
) -> tuple[list[Matrix], list[Matrix]]:
    """Errors and their derivatives of one log's requests, for each kind of error.

    The derivatives hold for an unchanged schedule. Between two moments of a request lie some
    iterations, resident requests in them and scheduled tokens: a software time counts as often.
    """
    log = problem.logs[number]
    replayed = _replayed(problem, number, times, slowness[number])
    moved_until = _moved_until(replayed, problem, number, slowness, times)
    intervals = zip(
        _intervals(replayed.times),
        _intervals(replayed.engine_times),
        _intervals(log.times),
        strict=True,
    )
    residuals, jacobians = [], []
    for simulated, engine, real in list(intervals)[kinds]:
        real_s = (real.end - real.begin) / real.steps
        is_counted = real.end <= problem.until_s
        moved = moved_until(engine.end) - moved_until(engine.begin)
        if simulated.front_end in problem.names:
            moved[:, list(problem.names).index(simulated.front_end)] = 1.0
        mean_s = real_s[is_counted].mean()
        simulated_s = (simulated.end - simulated.begin) / simulated.steps
        residuals.append(((simulated_s - real_s) / mean_s)[is_counted])
        jacobians.append((moved / (simulated.steps * mean_s)[:, None])[is_counted])
    return residuals, jacobians


def _replayed(
    problem: Problem, number: int, times: Mapping[str, float], slowness: float
) -> Replayed:
    """The log simulated with these software times, front end and slowness."""
    config = problem.configs[number]
    # With scales, the slowness is that of the kernels alone: replay would apply it to all.
    unit = slowness if problem.scales else 1.0
    software = {key: times.get(name, 0.0) / unit for name, key in KEYS.items()}
    choices = config.cost.parameters["choices"].updated(**software)
    before, after = (times.get(name, 0.0) for name in FRONT)
    machine = LoggedMachine({0: before}, after, slowness)
    changed = replace(config, cost=config.cost.updated(choices=choices))
    return replay(problem.logs[number], changed, machine)


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
    replayed: Replayed,
    problem: Problem,
    log: int,
    slowness: Sequence[float],
    times: Mapping[str, float],
) -> Callable[[Matrix], Matrix]:
    """A function of moments (s, of the engine): the derivative of each moment by each unknown.

    A software time delays a moment by the number of iterations, of resident requests in them or of
    scheduled tokens up to it, times the slowness of the log's machine. A slowness delays it by the
    engine's busy time up to it, or by that of the kernels alone.
    """
    spans, slow = replayed.spans, slowness[log]
    steps = spans["iterations"].astype(np.float64)
    tokens = steps * spans["decode_seqs"] + spans["prefill_tokens"]
    counts = {"iteration": steps, "request": steps * spans["running"], "token": tokens}
    busy, nothing = spans["duration_s"], np.zeros(len(steps))
    unit = 1.0 if problem.scales else slow
    moved = [unit * counts.get(name, nothing) for name in problem.names]
    if problem.scales:
        software = sum(times.get(name, 0.0) / slow * count for name, count in counts.items())
        moved.append(busy - software)
    elif log == 0:  # its slowness is 1 / the product of the others
        moved += [-slow / slowness[other] * busy for other in problem.free]
    else:
        moved += [float(other == log) * busy for other in problem.free]
    begun = spans["start_s"]
    moments = np.stack([begun, begun + busy], axis=1).ravel()
    sums = [np.cumsum(np.stack([nothing, growth], axis=1).ravel()) for growth in moved]
    return lambda when: np.stack([np.interp(when, moments, total) for total in sums], axis=1)
