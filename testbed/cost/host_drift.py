"""The drift of a host between minutes, by the passes of its own sweeps and those of other hosts.

A run is as slow as its host is meanwhile, and no sweep before it can say that. Passes of sweeps are
draws of that slowness: a profile has their mean, and their deviation is how far a run may be from
it. A few passes say little of a deviation, so it is pooled with that of other hosts.
"""

from collections.abc import Mapping, Sequence
from math import log, sqrt
from statistics import stdev
from typing import Any

DRIFT, BEGAN, SLOWNESS = "drift", "began_s", "slowness"  # of a profile's fit
# The deviation (log) of a pass from its host's mean, by pairs of passes of vLLM's sweeps on six
# hosts, 33 to 67 s apart; GPUs of one host were swept at the same time
# (experiments/real/vllm_engine/results/h200-llama-3.1-8b/sweep_passes.csv)
OF_OTHERS, PAIRS = 0.07, 18
REFRESHED = "refreshed"  # in a fingerprint: launches are scaled by a sweep just before a run
# The deviation (log) of launches served from those of a sweep by the same engine just before, sizes
# left out included, in 18 servings on two hosts
# (experiments/real/vllm_engine/results/h200-llama-3.1-8b/pressure-9/canaries.csv)
OF_REFRESHED = 0.098


def between_passes(slowness: Sequence[float]) -> float:
    """The deviation (log) of a pass."""
    return stdev(map(log, slowness))


def drift_of_runs(fit: Mapping[str, Any]) -> float:
    """The deviation (log) of the host of a run from the profile with this fit. Sweeps whose drift
    is not known count as one pass.
    """
    slowness = fit[DRIFT][SLOWNESS] if DRIFT in fit else [1.0]
    more = len(slowness) - 1
    known = PAIRS + more
    own = more * between_passes(slowness) ** 2 if more else 0.0
    pooled = (PAIRS * OF_OTHERS**2 + own) / known
    of_few = known / (known - 2)  # the variance of Student's t
    return sqrt(pooled * of_few * (1 + 1 / len(slowness)))


def drift_words(fit: Mapping[str, Any]) -> str:
    """The drift that a profile knows, and the deviation of a run that follows."""
    of_run = f"{drift_of_runs(fit):.0%} for a run"
    if DRIFT not in fit:
        return f"its host's drift between minutes is not known (by other hosts {of_run})"
    drift = fit[DRIFT]
    between = between_passes(drift[SLOWNESS])
    passes = f"{len(drift[SLOWNESS])} passes in {drift[BEGAN][-1]:.0f} s"
    return f"its host's launches deviated by {between:.1%} between {passes} ({of_run})"
