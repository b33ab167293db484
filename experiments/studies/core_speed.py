"""The speed of one core over time, with nothing else running: whether a host has two of them.

    python -m testbed.experiments.studies.core_speed [--seconds S] [--out FILE.csv]

One process that stays on one core repeats the same work for S seconds, and counts how often it does
so in each tenth of a second. On a core of its own the counts are level; on one whose physical core
another machine or thread uses at times, they change by up to a factor of two and stay changed for
seconds. Launches of a host in such a time take as much longer (experiments/ACCURACY.md).
"""

import os
import time
from pathlib import Path

import numpy as np
import pandas as pd
from cyclopts import App

from testbed.experiments.cli.output import show

EACH_S = 0.1
WORK = range(300)
CHANGE = 0.85  # of the speed before: a slower core, not noise

app = App(help=__doc__)


@app.default
def main(*, seconds: float = 10.0, out: Path | None = None) -> None:
    """Measure the last core, and show how its speed changes."""
    rates = measured(seconds)
    speed = rates / rates.max()
    slower = int((speed[1:] < CHANGE * speed[:-1]).sum())
    show(
        f"repetitions in {EACH_S} s: {rates.min():.0f} to {rates.max():.0f}; median speed "
        f"{np.median(speed):.2f} of the highest, least {speed.min():.2f}; {slower} times slower by "
        f"{1 - CHANGE:.0%} or more than just before"
    )
    if out is not None:
        table = {"start_s": EACH_S * np.arange(len(rates)), "repetitions": rates.astype(int)}
        pd.DataFrame(table).round(3).to_csv(out, index=False)


def measured(seconds: float) -> np.ndarray:
    """Repetitions in each EACH_S."""
    usual = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(usual)})
    try:
        return np.array([_repetitions() for _ in range(round(seconds / EACH_S))], dtype=float)
    finally:
        os.sched_setaffinity(0, usual)


def _repetitions() -> int:
    end, count = time.monotonic() + EACH_S, 0
    while time.monotonic() < end:
        sum(WORK)
        count += 1
    return count


if __name__ == "__main__":
    app()
