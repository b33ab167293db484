"""The slowness of a vLLM's host while it launches prompts, from moment to moment.

Launches of a kind take the same work, so each over the mean of its kind is the host's slowness
then: the seconds in which its core is shared, and the deviations of single launches.
"""

import numpy as np
import pandas as pd

from testbed.experiments.real.vllm_engine.decode_fit import DecodeFit
from testbed.experiments.real.vllm_engine.launch_fit import MOST_HIDDEN, seen_launches
from testbed.experiments.real.vllm_engine.logged_steps import KIND
from testbed.experiments.real.vllm_engine.smooth import Floats

FEWEST = 3  # launches of a kind that a mean rests on
LONGEST_MS = 1000.0  # a factor holds so long at most: between two waves nothing is launched


def slowness_points(among: pd.DataFrame, decodes: DecodeFit) -> list[list[float]]:
    """Milliseconds since the first launch, and the factor from then on; empty without kinds that
    were seen. The mean over the time of a pass is 1: the drift between passes is an error, and no
    part of a run.
    """
    rows = _factors(among, decodes)
    points, begin_ms = list[list[float]](), 0.0
    for _, of_pass in rows.groupby("pass_s"):
        planned_ms = of_pass.planned.to_numpy(float)
        holds_ms = _holds_ms(planned_ms)
        factors = of_pass.factor / np.average(of_pass.factor, weights=holds_ms)
        begins_ms = begin_ms + np.cumsum(holds_ms) - holds_ms
        points += [[round(at), factor] for at, factor in zip(begins_ms, factors, strict=True)]
        begin_ms += holds_ms.sum()
    return points


def steady(_among: pd.DataFrame, _decodes: DecodeFit) -> list[list[float]]:
    """No factors: a host that is always as fast."""
    return []


def _factors(among: pd.DataFrame, decodes: DecodeFit) -> pd.DataFrame:
    """The launches of the passes in order, each over the mean of its kind. Sweeps whose passes are
    not known are one.
    """
    seen = seen_launches(among, decodes)
    if seen.pass_s.isna().all():
        seen = seen.assign(pass_s=0.0)
    rows = seen[~seen.is_unseen & seen.pass_s.notna()].sort_values("planned")
    launch_ms = rows.before_ms + rows.handed_ms
    kinds = [rows[name] for name in KIND]
    is_shown = rows.is_seen.groupby(kinds).transform("mean") >= 1 - MOST_HIDDEN
    is_shown &= launch_ms.groupby(kinds).transform("size") >= FEWEST
    return rows.assign(factor=launch_ms / launch_ms.groupby(kinds).transform("mean"))[is_shown]


def _holds_ms(planned_ms: Floats) -> Floats:
    """The time until the next launch; behind the last one, the usual one."""
    until_next = np.diff(planned_ms)
    last = np.median(until_next) if len(until_next) else LONGEST_MS
    holds: Floats = np.clip([*until_next, last], 1.0, LONGEST_MS)
    return holds
