"""Times of a server from its logs: least squares on TTFT and TPOT of every request.

Several logs: the machine of each takes slowness x (kernels + software times) for its iterations. One log whose kernels
are scaled: slowness x kernels + software times. A front end's constants come besides.
TTFT varies: a request waits for whole iterations, and one that the simulation lets in an iteration sooner or
later is off by that much, so that there are many bottoms. TPOT is a mean over many iterations, and smooth. So it starts
twice, at nothing and where a fit to TPOT alone ends, and the lower bottom counts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from testbed.config import RunConfig
from testbed.core.errors import InputError
from testbed.experiments.validation.least_squares import Matrix, Point, descend, uncertainty
from testbed.experiments.validation.log_replay import FrontEnd, Replayed, replay
from testbed.traces.vllm_log import Times, VllmLog

# The times that can be fitted: those of iterations, and what a profile's cost calls them; and those of the front end.
KEYS = {"iteration": "overhead_s", "request": "overhead_per_request_s", "token": "overhead_per_token_s"}
FRONT = ("before_first", "after_last")
TPOT, BOTH = slice(1, 2), slice(2)  # of TTFT and TPOT
UNIT_S = {"iteration": 1e-3, "request": 1e-4, "token": 1e-5, "before_first": 1e-2, "after_last": 1e-2}
LEAST_SLOWNESS = 0.05
ALIKE = 0.9  # correlation beyond which two times cannot be separated


@dataclass
class Problem:
    """Logs with their servers' configs, and the times to fit. Several logs have a slowness each, whose product is 1:
    the profile's kernels are right for their middle. scales: a single log has one too, which scales the profile's
    kernels. until_s: what ended later than this second of its log is not looked at. simulated counts the runs so far,
    best is the least root mean square error."""

    logs: Sequence[VllmLog]
    configs: Sequence[RunConfig]
    names: Sequence[str]
    scales: bool = False
    until_s: float = float("inf")
    simulated: int = field(default=0, init=False)
    best: float = field(default=float("inf"), init=False)

    @property
    def free(self) -> Sequence[int]:
        """The logs whose slowness is an unknown; the first one's follows from the others'."""
        return [0] if self.scales else range(1, len(self.logs))

    @property
    def start(self) -> Matrix:
        """No software, every machine as fast as the profile."""
        return np.array([0.0] * len(self.names) + [1.0] * len(self.free))

    @property
    def scale(self) -> Matrix:
        """Of the unknowns, for numbers of one size."""
        return np.array([UNIT_S[name] for name in self.names] + [1.0] * len(self.free))

    def named(self, values: Matrix) -> tuple[dict[str, float], list[float]]:
        """Times in seconds by name, none below zero; the slowness of each log."""
        times = dict(zip(self.names, np.maximum(values, 0.0).tolist(), strict=False))
        slowness = np.maximum(values[len(self.names) :], LEAST_SLOWNESS)
        return times, slowness.tolist() if self.scales else [float(1 / slowness.prod()), *slowness.tolist()]

    def progress(self) -> str:
        """For the user who waits."""
        rest = f", {100 * self.best:.1f}% of a request's times remain" if np.isfinite(self.best) else ""
        return f"fitting: {self.simulated} simulations{rest}"


@dataclass(frozen=True)
class Fitted:
    """Times in seconds by name, without those that came out below zero; slowness by the log's path. Standard errors are
    of both, but for the first of several logs; correlations are of times. error is the root of the mean squared
    relative error that remains."""

    times_s: dict[str, float]
    slowness: dict[str, float]
    standard_errors: dict[str, float]
    correlations: dict[tuple[str, str], float]
    error: float

    @property
    def alike(self) -> dict[tuple[str, str], float]:
        """Pairs that these logs cannot tell apart."""
        return {pair: value for pair, value in self.correlations.items() if abs(value) > ALIKE}


def front_ends(logs: Sequence[VllmLog]) -> Sequence[str]:
    """The times of the front end, which logs of the engine alone do not have."""
    return () if all(log.is_of_engine for log in logs) else FRONT


def fit(problem: Problem) -> Fitted:
    """Fit the named times, none of them below zero, and the slowness of the problem's slow logs."""

    def least(kinds: slice, start: Matrix) -> Point:
        return descend(lambda values: _at(problem, values, kinds), start, problem.scale, len(problem.names))

    starts = (problem.start, least(TPOT, problem.start).values)
    found = min((least(BOTH, start) for start in starts), key=lambda point: point.error)
    times, slowness = problem.named(found.values)
    kept = [i for i, name in enumerate(problem.names) if times[name] > 0]
    if not kept and not problem.scales:
        raise InputError(
            "the profile's costs are more than the logs took: none is left for software (fit-profile scales kernels)"
        )
    of_logs = [problem.logs[i].path for i in problem.free]
    columns = [*kept, *range(len(problem.names), len(found.values))]
    labels = [*(problem.names[i] for i in kept), *of_logs]
    errors, correlations = uncertainty(labels, found.rest, found.jacobian[:, columns], problem.scale[columns])
    return Fitted(
        {problem.names[i]: times[problem.names[i]] for i in kept},
        {log.path: value for log, value in zip(problem.logs, slowness, strict=True) if problem.free},
        errors,
        correlations,
        float(np.sqrt((found.rest**2).mean())),
    )


def _at(problem: Problem, values: Matrix, kinds: slice) -> Point:
    """What these unknowns leave: errors of every request's TTFT and TPOT, or of one kind, in units of its mean in that
    log; and how each unknown moves them. The schedule being what it is, a request waits for every iteration between two
    of its moments, for every resident request in each and for every token that they schedule: so often it has each
    software time, and all of it again where the machine is slower."""
    times, slowness = problem.named(values)
    front_end = FrontEnd(*(times.get(name, 0.0) for name in FRONT))
    residuals, jacobian = [], []
    for i, (log, config, slow) in enumerate(zip(problem.logs, problem.configs, slowness, strict=True)):
        unit = slow if problem.scales else 1.0  # with scales the slowness is the kernels' alone
        replayed = replay(log, _with_times(config, times, unit), front_end, slow)
        counts = _counts(replayed, problem, i, slowness, times)
        moments = zip(_moments(replayed.times), _moments(replayed.engine_times), _moments(log.times), strict=True)
        for (begun, done, steps, front), engine, (real_begun, real_done, *_) in list(moments)[kinds]:
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


def _with_times(config: RunConfig, times: Mapping[str, float], unit: float) -> RunConfig:
    configured = {key: times.get(name, 0.0) / unit for name, key in KEYS.items()}
    choices = config.cost.parameters["choices"].updated(**configured)
    return replace(config, cost=config.cost.updated(choices=choices))


def _moments(times: Times) -> list[tuple[Matrix, Matrix, Matrix, str]]:
    """From when to when TTFT and TPOT go, over how many steps, and what of the front end is in them."""
    several = times.output_len > 1
    steps = (times.output_len[several] - 1).astype(np.float64)
    first, finish = times.first_token_s, times.finish_s
    before, after = FRONT
    return [(times.arrival_s, first, np.ones(len(first)), before), (first[several], finish[several], steps, after)]


def _counts(
    replayed: Replayed, problem: Problem, log: int, slowness: Sequence[float], times: Mapping[str, float]
) -> Callable[[Matrix], Matrix]:
    """How much each unknown has moved the engine up to a moment of its own: iterations, resident requests in them and
    tokens scheduled, each as slow as the log's machine; and what goes by its slowness, the kernels or all of it."""
    spans, slow = replayed.spans, slowness[log]
    steps = spans["iterations"].astype(np.float64)
    tokens = steps * spans["decode_seqs"] + spans["prefill_tokens"]
    each = {"iteration": steps, "request": steps * spans["running"], "token": tokens}
    busy, nothing = spans["duration_s"], np.zeros(len(steps))
    if problem.scales:
        moving = [each.get(name, nothing) for name in problem.names]
        moving.append(busy - sum(times.get(name, 0.0) / slow * count for name, count in each.items()))
    else:
        moving = [slow * each.get(name, nothing) for name in problem.names]
        shares = [float(one == log) if log else -slow / slowness[one] for one in problem.free]
        moving += [share * busy for share in shares]
    begun = spans["start_s"]
    moments = np.stack([begun, begun + busy], axis=1).ravel()
    sums = [np.cumsum(np.stack([nothing, one], axis=1).ravel()) for one in moving]
    return lambda when: np.stack([np.interp(when, moments, total) for total in sums], axis=1)
