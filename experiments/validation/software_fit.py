"""Software times of a server from its logs: least squares on TTFT and TPOT of every request, by Gauss and Newton.

TTFT is scattered: a request waits for whole iterations, and one that the simulation lets in an iteration sooner or
later is off by that much, so that there are many bottoms. TPOT is a mean over many iterations, and smooth. So it starts
twice, at nothing and where a fit to TPOT alone ends, and the lower bottom counts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf

from experiments.runs.run_tables import Columns
from experiments.validation.deviations import Times
from experiments.validation.log_replay import Log, replay
from experiments.validation.software_times import KEYS
from testbed.core.errors import InputError

TPOT, BOTH = slice(1, 2), slice(2)  # of TTFT and TPOT
UNIT_S = {"iteration": 1e-3, "request": 1e-4, "token": 1e-5}
MAX_ROUNDS = 15
ENOUGH, PATIENCE = 1e-3, 3  # a round that takes less of the squared error away has not helped
SHARES = (1.0, 0.5, 0.2)
ALIKE = 0.9  # correlation beyond which two times cannot be told apart
Matrix = NDArray[np.float64]


class Point(NamedTuple):
    """Times in seconds, the errors that they leave, and how each of them moves these."""

    values: Matrix
    rest: Matrix
    jacobian: Matrix

    @property
    def error(self) -> float:
        """The sum of squares."""
        return float(self.rest @ self.rest)


@dataclass(frozen=True)
class Fitted:
    """Times in seconds by name, their standard errors and correlations; a time that came out below zero is left out.

    error is the root of the mean squared relative error that remains.
    """

    times_s: dict[str, float]
    standard_errors_s: dict[str, float]
    correlations: dict[tuple[str, str], float]
    error: float

    @property
    def alike(self) -> dict[tuple[str, str], float]:
        """Pairs that these logs cannot tell apart."""
        return {pair: value for pair, value in self.correlations.items() if abs(value) > ALIKE}


def fit(logs: Sequence[Log], config: DictConfig, names: Sequence[str]) -> Fitted:
    """Fit the named times, none of them below zero."""
    nothing = np.zeros(len(names))
    starts = (nothing, _descend(logs, config, names, nothing, TPOT).values)
    found = min((_descend(logs, config, names, start, BOTH) for start in starts), key=lambda point: point.error)
    times = dict(zip(names, found.values.tolist(), strict=True))
    above = [i for i, name in enumerate(names) if times[name] > 0]
    if not above:
        raise InputError("the profile prices more than the logs took; no software time is above zero: look at it")
    return _with_errors({names[i]: times[names[i]] for i in above}, found.rest, found.jacobian[:, above])


def _told(config: DictConfig, values: dict[str, float]) -> DictConfig:
    told = config.copy()
    for name, key in KEYS.items():
        OmegaConf.update(told, f"cost.choices.{key}", max(0.0, values.get(name, 0.0)))
    return told


def _at(logs: Sequence[Log], config: DictConfig, names: Sequence[str], values: Matrix, kinds: slice) -> Point:
    """What these times leave."""
    told = _told(config, dict(zip(names, values.tolist(), strict=True)))
    return Point(values, *_measure(logs, told, names, kinds))


def _measure(logs: Sequence[Log], config: DictConfig, names: Sequence[str], kinds: slice) -> tuple[Matrix, Matrix]:
    """Errors of every request's TTFT and TPOT, or of one kind, in units of its mean in that log; and how each time
    moves them.

    The schedule being what it is, a request waits for every iteration between two of its moments, for every resident
    request in each and for every token that they schedule: so often it has each software time.
    """
    residuals, jacobian = [], []
    for log in logs:
        replayed = replay(log, config)
        counts = _counts(replayed.spans, names)
        times = replayed.times
        both = list(zip(_moments(times), _moments(log.times), strict=True))
        for (begun, done, steps), (real_begun, real_done, _) in both[kinds]:
            real = (real_done - real_begun) / steps
            residuals.append(((done - begun) / steps - real) / real.mean())
            jacobian.append((counts(done) - counts(begun)) / (steps * real.mean())[:, None])
    return np.concatenate(residuals), np.concatenate(jacobian)


def _moments(times: Times) -> list[tuple[Matrix, Matrix, Matrix]]:
    """From when to when TTFT and TPOT go, and over how many steps."""
    several = times.output_len > 1
    steps = times.output_len[several] - 1.0
    first, finish = times.first_token_s, times.finish_s
    return [(times.arrival_s, first, np.ones(len(first))), (first[several], finish[several], steps)]


def _counts(spans: Columns, names: Sequence[str]) -> Callable[[Matrix], Matrix]:
    """How many iterations, resident requests in them and tokens scheduled there were up to a moment."""
    steps = spans["iterations"].astype(np.float64)
    tokens = steps * spans["decode_seqs"] + spans["prefill_tokens"]
    each = {"iteration": steps, "request": steps * spans["running"], "token": tokens}
    begun = spans["start_s"]
    moments = np.stack([begun, begun + spans["duration_s"]], axis=1).ravel()
    sums = [np.cumsum(np.stack([np.zeros(len(steps)), each[name]], axis=1).ravel()) for name in names]
    return lambda when: np.stack([np.interp(when, moments, total) for total in sums], axis=1)


def _descend(logs: Sequence[Log], config: DictConfig, names: Sequence[str], start: Matrix, kinds: slice) -> Point:
    """Steps of Gauss and Newton from `start`, the best point kept.

    A step is shortened where that helps. Where nothing helps it is taken whole, for another schedule may make a good
    step look bad; after PATIENCE such steps in a row it ends.
    """
    here = best = _at(logs, config, names, start, kinds)
    waited = 0
    for _ in range(MAX_ROUNDS):
        aim = _least(here.values, here.rest, here.jacobian, np.array([UNIT_S[name] for name in names]))
        tried = [_at(logs, config, names, here.values + share * (aim - here.values), kinds) for share in SHARES]
        found = min(tried, key=lambda point: point.error)
        here = found if found.error < here.error else tried[0]
        waited = 0 if here.error < best.error * (1 - ENOUGH) else waited + 1
        best = min(best, here, key=lambda point: point.error)
        if waited == PATIENCE:
            break
    return best


def _least(values: Matrix, rest: Matrix, jacobian: Matrix, scale: Matrix) -> Matrix:
    """Where the linear model has its least squares with no value below zero: of all subsets above zero, the best."""
    best, least = values, np.inf
    for size in range(len(values) + 1):
        for above in map(list, combinations(range(len(values)), size)):
            found = np.zeros(len(values))
            target = jacobian @ values - rest
            found[above] = scale[above] * np.linalg.lstsq(jacobian[:, above] * scale[above], target, rcond=None)[0]
            error = float(((jacobian @ found - target) ** 2).sum())
            if found.min() >= 0 and error < least:
                best, least = found, error
    return best


def _with_errors(times: dict[str, float], rest: Matrix, jacobian: Matrix) -> Fitted:
    """Standard errors and correlations, as if the requests' errors were independent of each other."""
    freedom = max(1, len(rest) - len(times))
    names, scale = list(times), np.array([UNIT_S[name] for name in times])
    scaled = jacobian * scale
    covariance = np.linalg.pinv(scaled.T @ scaled) * float(rest @ rest) / freedom
    spread = np.sqrt(np.diag(covariance))
    correlations = {
        (names[i], names[j]): float(covariance[i, j] / (spread[i] * spread[j]))
        for i, j in combinations(range(len(names)), 2)
        if spread[i] > 0 and spread[j] > 0
    }
    errors = dict(zip(names, (spread * scale).tolist(), strict=True))
    return Fitted(times, errors, correlations, float(np.sqrt((rest**2).mean())))
