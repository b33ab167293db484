"""The figure of a validation, for each log: requests running over time, how TTFT and TPOT are distributed, and what was
predicted for each request against what was measured."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np

from testbed.experiments.runs.whole_files import write_with
from testbed.traces.vllm_log import Times

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

POINTS = 400
STYLES = {"real": "k-", "simulated": "C0--"}


def draw(logs: Sequence[tuple[str, Times, Times]], path: Path) -> None:
    """One row of four panels for each log: its name, its times and those of the simulation."""
    figure, axes = plt.subplots(len(logs), 4, figsize=(14.5, 2.8 * len(logs)), squeeze=False, layout="constrained")
    for (running, ttft, tpot, each), (name, *both) in zip(axes, logs, strict=True):
        moments = np.linspace(0, max(times.finish_s.max() for times in both), POINTS)
        for (label, style), times in zip(STYLES.items(), both, strict=True):
            running.plot(moments, times.running_at(moments), style, linewidth=1.2, label=label)
        running.set(title="/".join(Path(name).parts[-2:])[-40:], xlabel="time (s)", ylabel="requests running")
        running.legend(frameon=False)
        _distribution(ttft, "TTFT (s)", [times.ttft_s for times in both])
        _distribution(tpot, "TPOT (ms)", [1000 * times.tpot_s for times in both])
        _each_request(each, *both)
    write_with(path, lambda temporary: figure.savefig(temporary, dpi=130))
    plt.close(figure)


def _each_request(axes: Axes, real: Times, simulated: Times) -> None:
    for label, *both in (("TTFT", real.ttft_s, simulated.ttft_s), ("latency", real.e2e_s, simulated.e2e_s)):
        axes.loglog(*both, ".", markersize=3, label=label)
    low, high = min(real.ttft_s.min(), simulated.ttft_s.min()), max(real.e2e_s.max(), simulated.e2e_s.max())
    axes.plot((low, high), (low, high), "k-", linewidth=0.8)
    axes.set(xlabel="measured (s)", ylabel="predicted (s)")
    axes.legend(frameon=False)


def _distribution(axes: Axes, label: str, both: Sequence[np.ndarray]) -> None:
    for values, style in zip(both, STYLES.values(), strict=True):
        if len(values):
            axes.plot(np.sort(values), np.arange(1, len(values) + 1) / len(values), style, linewidth=1.2)
    axes.set(xlabel=label, ylabel="share of requests")
