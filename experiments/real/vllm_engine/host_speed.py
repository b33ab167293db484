"""The slowness of a host while it logs iterations, over its mean.

One core's speed changes by a factor of up to 1.7 and stays for about a second, as if another
thread shares the core. The scheduler's time for each decode shows it, since its work is the same in
every iteration; launches slow down with it.
"""

import numpy as np
import pandas as pd

from testbed.experiments.real.vllm_engine.smooth import Floats

US = 1e6
TIMES = (("schedule_start_s", "schedule_end_s"), ("result_s", "updated_s"))  # the scheduler's own
FEWEST = 50  # iterations of decodes that a mean rests on
AROUND = 7  # iterations that are looked at together
FIXED_US, PER_DECODE_US = 150.0, 12.0  # weights of the fit alone
OUTLIERS = 97  # percentile; the rest paused
FEW_DECODES = 4  # as many decodes halve what their times say, beside the scheduler's fixed work
LEAST, MOST = 0.4, 2.0


def slowness(table: pd.DataFrame) -> pd.Series:
    """The slowness of each iteration, over the log's mean; 1 if it lacks the scheduler's times, or
    decodes.
    """
    alone = (table.prompts == 0) & (table.decodes > 0)
    if alone.sum() < FEWEST or not {name for pair in TIMES for name in pair} <= set(table):
        return pd.Series(1.0, index=table.index)
    decodes = table.decodes[alone].to_numpy(float)
    taken = sum(US * (table[end] - table[start])[alone].to_numpy(float) for start, end in TIMES)
    relative = pd.Series(np.nan, index=table.index)
    relative[alone] = taken / _usual(decodes, taken)
    around = relative.rolling(AROUND, center=True, min_periods=1).median().ffill().bfill()
    beside = table.decodes.rolling(AROUND, center=True, min_periods=1).median()
    trusted = (around.clip(LEAST, MOST) - 1) * beside / (beside + FEW_DECODES)
    return 1 + trusted


def _usual(decodes: Floats, taken: Floats) -> Floats:
    """The usual time of as many decodes (microseconds): a fixed time, and more for each."""
    weights = FIXED_US + PER_DECODE_US * decodes
    is_usual = taken / weights < np.percentile(taken / weights, OUTLIERS)
    terms = np.stack([np.ones(len(decodes)), decodes], axis=1)
    scaled = terms / weights[:, None]
    fit = np.linalg.lstsq(scaled[is_usual], (taken / weights)[is_usual], rcond=None)[0]
    usual: Floats = np.maximum(terms @ fit, 1.0)
    return usual
