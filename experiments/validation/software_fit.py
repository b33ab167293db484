"""Times of a server from its logs: least squares on TTFT and TPOT of every request, by Gauss and
Newton.

Several logs: the machine of each takes slowness x (kernels + software times) for its iterations.
One log whose kernels are scaled: slowness x kernels + software times. A front end's constants come
besides.

TTFT varies: a request waits for whole iterations, and one that the simulation lets in an iteration
sooner or later is off by that much, so that there are many bottoms. TPOT is a mean over many
iterations, and smooth. So it starts twice, at nothing and where a fit to TPOT alone ends, and the
lower bottom counts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.config import RunConfig
from testbed.core.errors import InputError
from testbed.experiments.validation.log_replay import LoggedMachine, Replayed, replay
from testbed.traces.vllm_log import Times, VllmLog

FARTHEST = 2.0  # times as large or as small in one step
MAX_ROUNDS = 15
ENOUGH, PATIENCE = 1e-3, 3  # a round that takes less of the squared error away has not helped
SHARES = (1.0, 0.5, 0.2)
Matrix = NDArray[np.float64]
Errors = dict[str, float]
Correlations = dict[tuple[str, str], float]
# The times that can be fitted: those of iterations, and what a profile's cost calls them; and those
# of the front end.
KEYS = {
    "iteration": "overhead_s",
    "request": "overhead_per_request_s",
    "token": "overhead_per_token_s",
}
FRONT = ("before_first", "after_last")
TPOT, BOTH = slice(1, None), slice(None)  # of TTFT and TPOT
UNIT_S = {
    "iteration": 1e-3,
    "request": 1e-4,
    "token": 1e-5,
    "before_first": 1e-2,
    "after_last": 1e-2,
}
LEAST_SLOWNESS = 0.05
ALIKE = 0.9  # correlation beyond which two times cannot be separated


class Point(NamedTuple):
    """Unknowns, the errors that they leave, and how each of them moves these."""

    values: Matrix
    rest: Matrix
    jacobian: Matrix

    @property
    def error(self) -> float:
        """The sum of squares."""
        return float(self.rest @ self.rest)


def descend(at: Callable[[Matrix], Point], start: Matrix, scale: Matrix, num_times: int) -> Point:
    """Steps of Gauss and Newton from `start`, the best point kept; of the unknowns the first
    num_times are no less than 0, and any other changes by a factor of FARTHEST at most. A step is
    shortened where that helps. Where nothing helps it is taken whole, for another schedule may make
    a good step look bad; after PATIENCE such steps in a row it ends.
    """
    here = best = at(start)
    waited = 0
    for _ in range(MAX_ROUNDS):
        aim, rest = _least(here, scale, num_times), here.values[num_times:]
        aim[num_times:] = aim[num_times:].clip(rest / FARTHEST, rest * FARTHEST)
        tried = [at(here.values + share * (aim - here.values)) for share in SHARES]
        found = min(tried, key=lambda point: point.error)
        here = found if found.error < here.error else tried[0]
        waited = 0 if here.error < best.error * (1 - ENOUGH) else waited + 1
        best = min(best, here, key=lambda point: point.error)
        if waited == PATIENCE:
            break
    return best


def _least(here: Point, scale: Matrix, num_times: int) -> Matrix:
    """Where the linear model has its least squares with no time below zero: of all subsets above
    zero, the best.
    """
    values, rest, jacobian = here
    target = jacobian @ values - rest
    always = list(range(num_times, len(values)))
    best, least = values, np.inf
    for size in range(num_times + 1):
        for above in ([*some, *always] for some in combinations(range(num_times), size)):
            found = np.zeros(len(values))
            found[above] = (
                scale[above]
                * np.linalg.lstsq(jacobian[:, above] * scale[above], target, rcond=None)[0]
            )
            error = float(((jacobian @ found - target) ** 2).sum())
            if found[:num_times].min(initial=0.0) >= 0 and error < least:
                best, least = found, error
    return best


def uncertainty(
    labels: Sequence[str], rest: Matrix, jacobian: Matrix, scale: Matrix
) -> tuple[Errors, Correlations]:
    """Standard errors and correlations, as if the requests' errors were independent of each
    other.
    """
    freedom = max(1, len(rest) - len(labels))
    scaled = jacobian * scale
    covariance = np.linalg.pinv(scaled.T @ scaled) * float(rest @ rest) / freedom
    spread = np.sqrt(np.diag(covariance))
    correlations = {
        (labels[i], labels[j]): float(covariance[i, j] / (spread[i] * spread[j]))
        for i, j in combinations(range(len(labels)), 2)
        if spread[i] > 0 and spread[j] > 0
    }
    return dict(zip(labels, (spread * scale).tolist(), strict=True)), correlations


@dataclass
class Problem:
    """Logs with their servers' configs, and the times to fit. Several logs have a slowness each,
    whose product is 1: the profile's kernels are right for their middle. scales: a single log has
    one too, which scales the profile's kernels. until_s: what ended later than this second of its
    log is not looked at. simulated counts the runs so far, best is the least root mean square
    error.
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
        """The logs whose slowness is an unknown; the first one's follows from the others'."""
        return [0] if self.scales else range(1, len(self.logs))

    @property
    def scale(self) -> Matrix:
        """Of the unknowns, for numbers of one size."""
        return np.array([UNIT_S[name] for name in self.names] + [1.0] * len(self.free))

    def named(self, values: Matrix) -> tuple[dict[str, float], list[float]]:
        """Times in seconds by name, none below zero; the slowness of each log."""
        times = dict(zip(self.names, values.clip(0.0).tolist(), strict=False))
        slowness = values[len(self.names) :].clip(LEAST_SLOWNESS)
        return times, slowness.tolist() if self.scales else [
            float(1 / slowness.prod()),
            *slowness.tolist(),
        ]

    def progress(self) -> str:
        """For the user who waits."""
        rest = (
            f", {100 * self.best:.1f}% of a request's times remain"
            if np.isfinite(self.best)
            else ""
        )
        return f"fitting: {self.simulated} simulations{rest}"


@dataclass(frozen=True)
class Fitted:
    """Times in seconds by name, without those that came out below zero; slowness by the log's path.
    Standard errors are of both, but for the first of several logs; correlations are of times. error
    is the root of the mean squared relative error that remains.
    """

    times_s: dict[str, float]
    slowness: dict[str, float]
    standard_errors: Errors
    correlations: Correlations
    error: float

    @property
    def alike(self) -> Correlations:
        """Pairs that these logs cannot tell apart."""
        return {pair: value for pair, value in self.correlations.items() if abs(value) > ALIKE}


def front_ends(logs: Sequence[VllmLog]) -> Sequence[str]:
    """The times of the front end, which logs of the engine alone do not have."""
    return () if all(log.is_of_engine for log in logs) else FRONT


def fit(problem: Problem) -> Fitted:
    """Fit the named times, none of them below zero, and the slowness of the problem's slow logs."""

    def least(kinds: slice, start: Matrix) -> Point:
        return descend(
            lambda values: _at(problem, values, kinds), start, problem.scale, len(problem.names)
        )

    start = np.array(
        [0.0] * len(problem.names) + [1.0] * len(problem.free)
    )  # every machine as fast as the profile
    found = min(
        (least(BOTH, one) for one in (start, least(TPOT, start).values)),
        key=lambda point: point.error,
    )
    times, slowness = problem.named(found.values)
    kept = [i for i, name in enumerate(problem.names) if times[name] > 0]
    if not kept and not problem.scales:
        raise InputError(
            "the profile's costs are more than the logs took: none is left for software "
            "(calibrate fit profile scales kernels)"
        )
    columns = [*kept, *range(len(problem.names), len(found.values))]
    labels = [*(problem.names[i] for i in kept), *(problem.logs[i].path for i in problem.free)]
    errors, correlations = uncertainty(
        labels, found.rest, found.jacobian[:, columns], problem.scale[columns]
    )
    times_s = {problem.names[i]: times[problem.names[i]] for i in kept}
    of_log = {
        log.path: value for log, value in zip(problem.logs, slowness, strict=True) if problem.free
    }
    return Fitted(times_s, of_log, errors, correlations, float(np.sqrt((found.rest**2).mean())))


def _at(problem: Problem, values: Matrix, kinds: slice) -> Point:
    """What these unknowns leave: errors of every request's TTFT and TPOT, or of one kind, in units
    of its mean in that log; and how each unknown moves them. The schedule being what it is, a
    request waits for every iteration between two of its moments, for every resident request in each
    and for every token that they schedule: so often it has each software time, and all of it again
    where the machine is slower.
    """
    times, slowness = problem.named(values)
    before, after = (times.get(name, 0.0) for name in FRONT)
    residuals, jacobian = [], []
    for i, (log, config, slow) in enumerate(
        zip(problem.logs, problem.configs, slowness, strict=True)
    ):
        unit = slow if problem.scales else 1.0  # with scales the slowness is the kernels' alone
        choices = config.cost.parameters["choices"].updated(
            **{k: times.get(n, 0.0) / unit for n, k in KEYS.items()}
        )
        tried = replace(config, cost=config.cost.updated(choices=choices))
        replayed = replay(log, tried, LoggedMachine(before, after, slow))
        counts = _counts(replayed, problem, i, slowness, times)
        moments = zip(
            _moments(replayed.times),
            _moments(replayed.engine_times),
            _moments(log.times),
            strict=True,
        )
        for (begun, done, steps, front), engine, (real_begun, real_done, *_) in list(moments)[
            kinds
        ]:
            real = (real_done - real_begun) / steps
            seen = real_done <= problem.until_s
            moved = counts(engine[1]) - counts(engine[0])
            if front in problem.names:
                moved[:, list(problem.names).index(front)] = 1.0
            size = real[seen].mean()
            residuals.append((((done - begun) / steps - real) / size)[seen])
            jacobian.append((moved / (steps * size)[:, None])[seen])
    problem.simulated += len(problem.logs)
    rest = np.concatenate(residuals)
    if kinds == BOTH:
        problem.best = min(problem.best, float(np.sqrt((rest**2).mean())))
    return Point(values, rest, np.concatenate(jacobian))


def _moments(times: Times) -> list[tuple[Matrix, Matrix, Matrix, str]]:
    """From when to when TTFT and TPOT go, over how many steps, and what of the front end is in
    them.
    """
    several = times.output_len > 1
    steps = (times.output_len[several] - 1).astype(np.float64)
    first, finish = times.first_token_s, times.finish_s
    before, after = FRONT
    return [
        (times.arrival_s, first, np.ones(len(first)), before),
        (first[several], finish[several], steps, after),
    ]


def _counts(
    replayed: Replayed,
    problem: Problem,
    log: int,
    slowness: Sequence[float],
    times: Mapping[str, float],
) -> Callable[[Matrix], Matrix]:
    """How much each unknown has moved the engine up to a moment of its own: iterations, resident
    requests in them and tokens scheduled, each as slow as the log's machine; and what goes by its
    slowness, the kernels or all of it.
    """
    spans, slow = replayed.spans, slowness[log]
    steps = spans["iterations"].astype(np.float64)
    tokens = steps * spans["decode_seqs"] + spans["prefill_tokens"]
    each = {"iteration": steps, "request": steps * spans["running"], "token": tokens}
    busy, nothing = spans["duration_s"], np.zeros(len(steps))
    moving = [(1.0 if problem.scales else slow) * each.get(name, nothing) for name in problem.names]
    if problem.scales:
        moving.append(
            busy - sum(times.get(name, 0.0) / slow * count for name, count in each.items())
        )
    else:
        moving += [
            (float(one == log) if log else -slow / slowness[one]) * busy for one in problem.free
        ]
    begun = spans["start_s"]
    moments = np.stack([begun, begun + busy], axis=1).ravel()
    sums = [np.cumsum(np.stack([nothing, one], axis=1).ravel()) for one in moving]
    return lambda when: np.stack([np.interp(when, moments, total) for total in sums], axis=1)
