"""Decode iterations of a vLLM: a time for each number of sequences, and more for each token."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from testbed.core.errors import InputError
from testbed.experiments.real.vllm_engine.smooth import Floats, median_of_neighbours, rising, slope

FEWEST = 4  # iterations of a batch that its median rests on
SLOW = 1.1
MOST = 400  # points of a batch between which slopes are taken


class DecodeFit(NamedTuple):
    """Times (ms) of iterations, by the number of decodes: at_zero + per_token x tokens read."""

    num_seqs: list[int]
    at_zero: Floats
    per_token: Floats

    def ms(self, num_seqs: float, context: float) -> float:
        """The time of an iteration, linear between the numbers of sequences."""
        return float(self.each_ms([num_seqs], [context])[0])

    def each_ms(self, num_seqs: ArrayLike, context: ArrayLike) -> Floats:
        """The times of several iterations."""
        of_seqs = np.asarray(num_seqs, float)
        at_zero = np.interp(of_seqs, self.num_seqs, self.at_zero)
        per_token = np.interp(of_seqs, self.num_seqs, self.per_token)
        return np.asarray(at_zero + np.asarray(context, float) * per_token)

    def reading_ms(self, rows: pd.DataFrame) -> "pd.Series[float]":
        """The attention of the decodes of iterations: what they take for the tokens read."""
        return rows.decode_context * np.interp(rows.decodes, self.num_seqs, self.per_token)


class Batch(NamedTuple):
    """The steady iterations of a number of decodes, and the slope that they give by themselves."""

    rows: pd.DataFrame
    slope: float | None


def fit_decodes(
    steady: pd.DataFrame, graph_sizes: Sequence[int], smooth: Callable[[Sequence[float]], Floats]
) -> DecodeFit:
    """A curve through the steady decode iterations. Raises InputError without enough of them."""
    return fit_batches(batches_of(steady, graph_sizes), smooth)


def batches_of(steady: pd.DataFrame, graph_sizes: Sequence[int]) -> dict[int, Batch]:
    """The batches that a curve goes through, by their size. A batch that is padded to another size
    is left out.
    """
    is_size = steady.decodes.isin(graph_sizes) | (steady.decodes > max(graph_sizes, default=0))
    return {
        int(count): Batch(rows, slope_of(rows))
        for count, rows in steady[is_size].groupby("decodes")
        if len(rows) >= FEWEST
    }


def fit_batches(
    batches: Mapping[int, Batch], smooth: Callable[[Sequence[float]], Floats]
) -> DecodeFit:
    """A curve through these batches.

    Slopes are the median of a batch's and its two neighbours', so that batches of one context take
    the nearest slope. smooth: of the medians by size. Raises InputError if no batch has a slope.
    """
    slopes = {count: each.slope for count, each in batches.items() if each.slope is not None}
    if not slopes:
        raise InputError(
            key="the logged iterations", problem="have no batch of decodes with several contexts"
        )
    between = median_of_neighbours(list(slopes.values()))
    counts = list(batches)
    per_token = np.interp(counts, list(slopes), between)
    every = [batch.rows for batch in batches.values()]
    at_zero = [
        float(np.median(rows.ms - each * rows.decode_context))
        for rows, each in zip(every, per_token, strict=True)
    ]
    shape = DecodeFit(counts, smooth(at_zero), per_token)
    level = _level(pd.concat(every), shape)
    return DecodeFit(counts, level * shape.at_zero, level * per_token)


def with_slow_kernels(times: Sequence[float]) -> Floats:
    """Rising, but for sizes that take SLOW times as long as the next larger one: a host takes no
    longer for fewer sequences, so their kernels are slow.
    """
    curve = rising(times)
    for i in range(len(times) - 1):
        if times[i] > SLOW * times[i + 1]:
            curve[i] = times[i]
            curve[i + 1 :] = rising(times[i + 1 :])
    return curve


def _level(rows: pd.DataFrame, shape: DecodeFit) -> float:
    """Mean over predicted time: medians give the shape, but latencies are sums of all iterations,
    those among them in which the host paused.
    """
    predicted = sum(shape.each_ms(rows.decodes, rows.decode_context).tolist())
    return float(rows.ms.sum() / predicted)


def slope_of(rows: pd.DataFrame) -> float | None:
    """Milliseconds of a batch for each token that it reads; None if all its contexts are
    alike.
    """
    every = rows.iloc[:: max(1, len(rows) // MOST)]
    return slope(every.decode_context.to_numpy(float), every.ms.to_numpy(float))
