"""The table of `testbed.sweep`: a data frame that also knows its axes, so that seeds are
replications of one setting.
"""

from typing import Any

import pandas as pd

from testbed.run.result import front_end
from testbed.run.summaries import merge_axes
from testbed.study.replications import interval

SEED = "seed"
HALF_WIDTH = " ±"  # behind a column's name: half of its 95% interval


class Sweep(pd.DataFrame):  # type: ignore[misc]  # pandas has no types here
    """A row for each run; what is selected of it is a plain data frame.

    `attrs["axes"]` has the names of the axes.
    """

    @property
    def summary(self) -> pd.DataFrame:
        """A row for each setting, which is the runs that differ in their seed alone: the mean of
        each number, and half of its 95% interval in the column behind it (`NAME ±`, Student's t;
        None for one seed). A mean of which a seed has no number is None too.
        """
        axes = [name for name in self.attrs["axes"] if name != SEED]
        no_results = {*axes, SEED, *merge_axes([SEED], {SEED: None})}  # as an axis, and in full
        numbers = [name for name in self.select_dtypes("number") if name not in no_results]
        groups = self.groupby(axes, sort=False) if axes else [((), self)]
        rows = [
            {**dict(zip(axes, values, strict=True)), **_means(group[numbers])}
            for values, group in groups
        ]
        return pd.DataFrame(rows)

    def plot(self, *metrics: str) -> Any:
        """A figure (Matplotlib's) over the axis that is a number with the most values; with several
        seeds a mean with its 95% interval as a band.

        Raises InputError for a sweep without an axis of three numbers, and for an unknown metric.

        Args:
            *metrics: columns to draw, such as "ttft_s_p50"; without any: latencies, goodput, batch.
        """
        axes = pd.DataFrame(self[self.attrs["axes"]])
        return front_end().views.draw_sweep(axes, self.to_dict("records"), metrics)


def _means(numbers: pd.DataFrame) -> dict[str, float | None]:
    """The mean of each column and half of its interval, by name."""
    means = dict[str, float | None]()
    for name in numbers:
        values = [float(value) for value in numbers[name].dropna()]
        mean = interval(values) if len(values) == len(numbers) else None
        means[str(name)] = None if mean is None else mean.mean
        means[f"{name}{HALF_WIDTH}"] = None if mean is None else mean.half_width
    return means
