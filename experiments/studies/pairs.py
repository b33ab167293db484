"""Simulates the runs that a GPU has served (kernels/results/h200-engine.md), and compares both.

A simulated run has the config of the real one, so the same requests, policy and scheduler; it needs
no GPU. Its costs are the profile measured on the engine. Nothing is fitted to a pair.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from testbed.core.errors import InputError
from testbed.experiments.runs.whole_files import whole
from testbed.experiments.studies.paired_runs import (
    FIGURES,
    KNEE,
    LOADS,
    PAIRS,
    SERIES,
    Pair,
    figures,
)
from testbed.run.config import RunConfig
from testbed.run.simulate import run

MEASURED = Path("kernels/results/engine/pairs/measured.csv")
INDEX = ["pair", "about", "load"]
JUDGED = list(FIGURES[2:])  # the first two are numbers of requests
POINTS = "hit_rate"  # its errors are differences in percentage points
GOALS = {"mean_batch": 3.0, POINTS: 1.0, "tpot_mean_s": 5.0}  # largest errors up to KNEE
WIDER = 0.05  # beyond KNEE the measured range is widened by this share
UNITS = {
    POINTS: (100, ".1f"),
    "ttft_mean_s": (1000, ".1f"),
    "ttft_p50_s": (1000, ".1f"),
    "tpot_mean_s": (1000, ".2f"),
    "mean_batch": (1, ".2f"),
}
NAMES = (
    "batch",
    "hit rate, %",
    "preemptions",
    "recomputed tokens",
    "TTFT mean, ms",
    "TTFT p50, ms",
    "TPOT, ms",
    "tokens/s",
)
ROWS = {
    "preemptions": ("preemptions", 1),
    "hit_rate": ("hit rate (%)", 100),
    "recomputed_tokens": ("recomputed tokens", 1),
    "ttft_mean_s": ("mean TTFT (s)", 1),
    "tpot_mean_s": ("mean TPOT (ms)", 1000),
}
STYLES = {"measured, range of the seeds": "ko-", "simulated": "C0s--"}


class Sides(NamedTuple):
    """The measured and the simulated figures of each pair, by pair, series and load."""

    real: pd.DataFrame
    ours: pd.DataFrame

    @property
    def errors(self) -> pd.DataFrame:
        """Errors in percent, those of the hit rate in percentage points; NaN if a value is missing,
        or if 0 was measured.
        """
        percent = 100 * (self.ours / self.real - 1).where(self.real != 0)
        return percent.assign(**{POINTS: 100 * (self.ours - self.real)[POINTS]})

    def of(self, chosen: Any) -> "Sides":
        """The sides of the chosen pairs."""
        return Sides(self.real[chosen], self.ours[chosen])


def simulated() -> Sides:
    """Every kept run of a pair, and its simulation."""
    if not MEASURED.is_file():
        raise InputError(
            key=MEASURED, problem="no such file", remedy="work in the folder of the repository"
        )
    table = pd.read_csv(MEASURED)
    table.index = pd.Index([f"{row.series}-{row.load:g}-{row.seed}" for row in table.itertuples()])
    pairs = [pair for pair in PAIRS if pair.name in table.index]  # the last three were not begun
    ours = [simulate(pair) for pair in pairs]
    places = [(pair.name, pair.series.about, pair.load) for pair in pairs]
    index = pd.MultiIndex.from_tuples(places, names=INDEX)
    real = table.loc[[pair.name for pair in pairs], JUDGED].astype(float).set_axis(index)
    return Sides(real, pd.DataFrame(ours, index, JUDGED, dtype=float))


def simulate(pair: Pair) -> Mapping[str, float | None]:
    """The figures of a simulated pair."""
    result = run(RunConfig.from_values(pair.config()))
    return figures(result.setup, result.recorder, result.summary)


def section(sides: Sides) -> str:
    """Both tables in Markdown, each with its verdicts."""
    is_below = sides.real.index.get_level_values("load") <= KNEE
    below, above = sides.of(is_below), sides.of(~is_below)
    return "\n".join([*_markdown(_compared(below)), "", *_verdicts(below), "", *_overloads(above)])


def _compared(sides: Sides) -> Iterator[Sequence[str]]:
    """A row for each pair: simulated and measured figures with the error."""
    rows = zip(sides.ours.iterrows(), sides.real.iloc, sides.errors.iloc, strict=True)
    for ((_, about, load), ours), real, errors in rows:
        cells = [_cell(name, ours[name], real[name], errors[name]) for name in JUDGED]
        yield about, f"{load:g}", *cells


def _cell(name: str, ours: float, real: float, error: float) -> str:
    both = f"{_value(name, ours)} / {_value(name, real)}"
    return both if pd.isna(error) else f"{both}, {error:+.1f}{_unit(name)}"


def _verdicts(sides: Sides) -> Iterator[str]:
    """A line for each goal: the number of pairs within it, and the others."""
    for name, limit in GOALS.items():
        errors = sides.errors[name].dropna()
        missed = [
            f"{pair} {error:+.1f}" for (pair, *_), error in errors[errors.abs() > limit].items()
        ]
        title = NAMES[JUDGED.index(name)].split(",")[0]
        kept = (
            f"- {title} within {limit:g}{_unit(name)}: {len(errors) - len(missed)} of "
            f"{len(errors)} pairs"
        )
        yield f"{kept}; missed by {', '.join(missed)}" if missed else kept


def _overloads(sides: Sides) -> Iterator[str]:
    """A table of the ranges over the seeds, and the number of figures inside the measured range.

    A cell is bold if the simulated mean is outside the measured range.
    """
    lines, means_inside, seeds_inside = [], list[bool](), list[bool]()
    seeds = sides.real.groupby(INDEX[1:], sort=False).filter(lambda rows: len(rows) > 1)
    for (about, load), real in seeds.groupby(INDEX[1:], sort=False):
        ours, line = sides.ours.loc[real.index], [str(about), f"{load:g}"]
        for name in JUDGED:
            low, high = real[name].min() * (1 - WIDER), real[name].max() * (1 + WIDER)
            is_mean_inside = bool(low <= ours[name].mean() <= high)
            line.append(_ranges(name, ours[name], real[name], is_mean_inside))
            if not pd.isna(low) and (high or ours[name].any()):
                means_inside.append(is_mean_inside)
                seeds_inside += ours[name].between(low, high).tolist()
        lines.append(line)
    yield from _markdown(lines)
    yield ""
    yield (
        f"Inside the measured range, widened by {WIDER:.0%}: {sum(means_inside)} of "
        f"{len(means_inside)} figures ({sum(means_inside) / max(1, len(means_inside)):.0%}); "
        f"seed by seed {sum(seeds_inside)} of {len(seeds_inside)}. "
        "Zeros on both sides do not count."
    )


def _ranges(name: str, ours: pd.Series, real: pd.Series, is_mean_inside: bool) -> str:
    """The simulated and the measured range of a figure, bold unless the mean is inside."""
    if pd.isna(real.min()):
        return "-"
    ranges = [f"{_value(name, side.min())} to {_value(name, side.max())}" for side in (ours, real)]
    cell = " / ".join(ranges)
    return cell if is_mean_inside else f"**{cell}**"


def _value(name: str, value: float) -> str:
    times, form = UNITS.get(name, (1, ",.0f"))
    return "-" if pd.isna(value) else f"{times * value:{form}}"


def _unit(name: str) -> str:
    return " points" if name == POINTS else "%"


def _markdown(rows: Iterable[Sequence[str]]) -> list[str]:
    names = ["pair", "load", *NAMES]
    return ["| " + " | ".join(line) + " |" for line in (names, ["---"] * len(names), *rows)]


def draw(sides: Sides, path: Path) -> None:
    """Draw a column of panels for each series with all loads: means and ranges over the seeds."""
    figure = Figure(figsize=(14, 12), layout="constrained")
    axes = figure.subplots(len(ROWS), len(SERIES))
    for column, series in zip(axes.T, SERIES, strict=True):
        column[0].set_title(series.about)
        column[-1].set_xlabel("load, times the sustainable one")
        own = Sides(*(side.xs(series.about, level="about") for side in sides))
        for panel, name in zip(column, ROWS, strict=True):
            _panel(panel, own, name)
    for panel, (label, _) in zip(axes[:, 0], ROWS.values(), strict=True):
        panel.set_ylabel(label)
    axes[0, 0].legend(frameon=False)
    with whole(path) as temporary:
        figure.savefig(temporary, dpi=75, format=path.suffix[1:])


def _panel(panel: Axes, sides: Sides, name: str) -> None:
    """One figure over the load; each measured point has the simulation's error."""
    means = []
    for (label, style), side in zip(STYLES.items(), sides, strict=True):
        of_load = (
            (ROWS[name][1] * side[name])
            .groupby(level="load")
            .agg(["mean", "min", "max"])
            .reindex(LOADS)
        )
        if of_load["mean"].isna().any():
            panel.text(0.5, 0.5, "no cache", ha="center", transform=panel.transAxes)
            panel.set(xticks=[], yticks=[])
            return
        middle = of_load["mean"]
        means.append(middle)
        reach = [middle - of_load["min"], of_load["max"] - middle]
        panel.errorbar(
            range(len(LOADS)),
            middle,
            reach,
            fmt=style,
            markersize=3.5,
            linewidth=1,
            capsize=2,
            label=label,
        )
    panel.set_xticks(range(len(LOADS)), [f"{load:g}" for load in LOADS])
    panel.margins(y=0.2)
    _write_errors(panel, name, *means)


def _write_errors(panel: Axes, name: str, measured: pd.Series, simulated: pd.Series) -> None:
    """Above each point the error of the simulation: in % of the measured mean, a hit rate's as a
    difference.
    """
    look: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "fontsize": 7}
    for place, (real, ours) in enumerate(zip(measured, simulated, strict=True)):
        text = ""
        if name == "hit_rate":
            text = f"{ours - real:+.1f}"
        elif real:
            text = f"{100 * (ours / real - 1):+.0f}%"
        panel.annotate(text, (place, max(real, ours)), (0, 6), **look)
