"""The figure of a validation: requests running over time, and how TTFT and TPOT are distributed, for each log."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np

from experiments.runs.whole_files import write_with
from experiments.validation.deviations import Times
from experiments.validation.running import running_at

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

POINTS = 400


class Pair(NamedTuple):
    """A log's name, its times and those of the simulation."""

    name: str
    real: Times
    simulated: Times


def draw(pairs: Sequence[Pair], path: Path) -> None:
    """One row of three panels for each log."""
    figure, axes = plt.subplots(len(pairs), 3, figsize=(11, 2.8 * len(pairs)), squeeze=False, layout="constrained")
    for row, pair in zip(axes, pairs, strict=True):
        _running(row[0], pair)
        _distribution(row[1], "TTFT (s)", *(t.first_token_s - t.arrival_s for t in (pair.real, pair.simulated)))
        _distribution(row[2], "TPOT (ms)", *(_tpot_ms(t) for t in (pair.real, pair.simulated)))
    write_with(path, lambda temporary: figure.savefig(temporary, dpi=130))
    plt.close(figure)


def _tpot_ms(times: Times) -> np.ndarray:
    several = times.output_len > 1
    return 1000 * (times.finish_s - times.first_token_s)[several] / (times.output_len[several] - 1)


def _running(axes: Axes, pair: Pair) -> None:
    moments = np.linspace(0, max(pair.real.finish_s.max(), pair.simulated.finish_s.max()), POINTS)
    for label, times, style in (("real", pair.real, "k-"), ("simulated", pair.simulated, "C0--")):
        axes.plot(moments, running_at(times, moments), style, linewidth=1.2, label=label)
    axes.set(title=_short(pair.name), xlabel="time (s)", ylabel="requests running")
    axes.legend(frameon=False)


def _distribution(axes: Axes, label: str, real: np.ndarray, simulated: np.ndarray) -> None:
    for values, style in ((real, "k-"), (simulated, "C0--")):
        if len(values):
            axes.plot(np.sort(values), np.arange(1, len(values) + 1) / len(values), style, linewidth=1.2)
    axes.set(xlabel=label, ylabel="share of requests")


def _short(path: str) -> str:
    return "/".join(Path(path).parts[-2:])[-40:]
