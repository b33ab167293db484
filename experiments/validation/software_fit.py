"""Software times of a server from its logs: least squares on TTFT and TPOT of every request, by Gauss and Newton."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf

from experiments.validation.errors import Times
from experiments.validation.replay import Log, replay
from testbed.core.errors import InputError

NAMES = ("iteration", "request", "token")
KEYS = dict(zip(NAMES, ("overhead_s", "overhead_per_request_s", "overhead_per_token_s"), strict=True))
UNIT_S = {"iteration": 1e-3, "request": 1e-4, "token": 1e-5}
MAX_ROUNDS = 20
ENOUGH = 1e-4  # a round that takes less of the squared error away is the last
ALIKE = 0.9  # correlation beyond which two times cannot be told apart
Matrix = NDArray[np.float64]


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
    """Fit the named times; while one is below zero, the worst of them is dropped."""
    active = list(names)
    while active:
        times, rest, jacobian = _descend(logs, _told(config, {}), active)
        below = [name for name in active if times[name] <= 0]
        if not below:
            return _with_errors(times, rest, jacobian)
        active.remove(min(below, key=lambda name: times[name] / UNIT_S[name]))
    raise InputError("the profile prices more than the logs took: no software time is above zero; look at its prices")


def _told(config: DictConfig, values: dict[str, float]) -> DictConfig:
    told = config.copy()
    for name, key in KEYS.items():
        OmegaConf.update(told, f"cost.choices.{key}", max(0.0, values.get(name, 0.0)))
    return told


def _measure(logs: Sequence[Log], config: DictConfig, names: Sequence[str]) -> tuple[Matrix, Matrix]:
    """Errors of every request's TTFT and TPOT, each in units of its mean in that log; and how each time moves them.

    The schedule being what it is, a request waits for every iteration between two of its moments, for every resident
    request in each and for every token that they schedule: so often it has each software time.
    """
    residuals, jacobian = [], []
    for log in logs:
        replayed = replay(log, config)
        counts = _counts(replayed.spans, names)
        times = replayed.times
        kinds = zip(_moments(times), _moments(log.times), strict=True)
        for (begun, done, steps), (real_begun, real_done, _) in kinds:
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


def _counts(spans: pd.DataFrame, names: Sequence[str]) -> Callable[[Matrix], Matrix]:
    """How many iterations, resident requests in them and tokens scheduled there were up to a moment."""
    steps = spans["iterations"].to_numpy(dtype=np.float64)
    tokens = steps * spans["decode_seqs"].to_numpy() + spans["prefill_tokens"].to_numpy()
    each = {"iteration": steps, "request": steps * spans["running"].to_numpy(), "token": tokens}
    begun = spans["start_s"].to_numpy()
    moments = np.stack([begun, begun + spans["duration_s"].to_numpy()], axis=1).ravel()
    sums = [np.cumsum(np.stack([np.zeros(len(spans)), each[name]], axis=1).ravel()) for name in names]
    return lambda when: np.stack([np.interp(when, moments, total) for total in sums], axis=1)


def _descend(logs: Sequence[Log], config: DictConfig, names: Sequence[str]) -> tuple[dict[str, float], Matrix, Matrix]:
    """Steps of Gauss and Newton, halved until they help."""
    times = dict.fromkeys(names, 0.0)
    rest, jacobian = _measure(logs, config, names)
    for _ in range(MAX_ROUNDS):
        scale = np.array([UNIT_S[name] for name in names])
        step = scale * np.linalg.lstsq(jacobian * scale, -rest, rcond=None)[0]
        better = None
        for share in (1.0, 0.5, 0.25, 0.125):
            tried = {name: times[name] + share * float(step[i]) for i, name in enumerate(names)}
            found = _measure(logs, _told(config, tried), names)
            if found[0] @ found[0] < rest @ rest:
                better = tried, *found
                break
        if better is None:
            break
        gained = 1 - (better[1] @ better[1]) / (rest @ rest)
        times, rest, jacobian = better
        if gained < ENOUGH:
            break
    return times, rest, jacobian


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
