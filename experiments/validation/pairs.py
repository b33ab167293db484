"""The simulated side of the runs that `testbed gpu pairs` made on a GPU, and tables and a figure of
both sides.

It needs no GPU: a simulated run has the config of the real one, so the same requests, policy and
scheduler. Costs are those of the profile measured on the engine and the software time that was
measured before the pairs began; nothing is fitted to a pair.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from testbed.build import build
from testbed.config import RunConfig
from testbed.core.errors import InputError
from testbed.experiments.runs.run_folder import write_everything
from testbed.experiments.runs.whole_files import SUMMARY, whole, write_json, write_text
from testbed.kernels.engine.pairs.plan import (
    FIGURES,
    KNEE,
    LOADS,
    PAIRS,
    SERIES,
    Pair,
    Stage,
    figures,
    read_software,
)
from testbed.run import run

INDEX = ["pair", "about", "load"]
JUDGED = list(FIGURES[2:])  # not the numbers of requests
POINTS = "hit_rate"  # its errors are differences in points
GOALS = {"mean_batch": 3.0, POINTS: 1.0, "tpot_mean_s": 5.0}  # percent, or points, up to KNEE
WIDER = 0.05  # by which the measured range is widened, beyond KNEE
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
    """The figures of each pair, as measured and as simulated; the index is the pair, its series and
    its load.
    """

    real: pd.DataFrame
    ours: pd.DataFrame

    @property
    def errors(self) -> pd.DataFrame:
        """Percent of the measured value, or points; none where a side has no value, or the measured
        one is 0.
        """
        percent = 100 * (self.ours / self.real - 1).where(self.real != 0)
        return percent.assign(**{POINTS: 100 * (self.ours - self.real)[POINTS]})

    def of(self, chosen: Any) -> "Sides":
        """These pairs alone."""
        return Sides(self.real[chosen], self.ours[chosen])


def simulated(runs: Path, profile: Path, stage: Stage, out: Path | None = None) -> Sides:
    """Every pair that `runs` has a measured line of, simulated; `out` gets the simulated run
    folders.
    """
    path, software = runs / "measured.csv", runs / "software.csv"
    if not path.is_file():
        raise InputError(f"{path}: no such file (testbed gpu pairs writes it, on a GPU)")
    table = pd.read_csv(path)
    table.index = pd.Index([f"{row.series}-{row.load:g}-{row.seed}" for row in table.itertuples()])
    pairs = [pair for pair in PAIRS if pair.name in table.index]
    if not pairs:
        raise InputError(
            f"{runs}: has no measured run of a pair (run testbed gpu pairs on a GPU first)"
        )
    ours = [simulate(pair, with_costs(pair, stage, profile, software), out) for pair in pairs]
    places = [(pair.name, pair.series.about, pair.load) for pair in pairs]
    index = pd.MultiIndex.from_tuples(places, names=INDEX)
    real = table.loc[[pair.name for pair in pairs], JUDGED].astype(float).set_axis(index)
    return Sides(real, pd.DataFrame(ours, index, JUDGED, dtype=float))


def simulate(pair: Pair, config: dict[str, Any], out: Path | None) -> Mapping[str, float | None]:
    """Simulate a config; the run is written below `out`."""
    setup = build(RunConfig.from_values(config))
    result = run(setup)
    if out is not None:
        folder = out / pair.name
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "config.yaml", yaml.safe_dump(config, sort_keys=False))
        write_everything(folder, setup, result)
        write_json(folder / "timing.json", {"wall_s": result.wall_s})
        write_json(folder / SUMMARY, result.summary)
    return figures(setup, result.recorder, result.summary)


def with_costs(pair: Pair, stage: Stage, profile: Path, software: Path) -> dict[str, Any]:
    """The config of a pair, simulated by a profile and by the software times of requests with as
    many sequences.
    """
    values: dict[str, Any] = pair.config(stage)
    del values["engine"]
    cost = values["cost"]
    settings = cost.get("choices") or cost["efficiencies"]
    settings["overhead_s"], settings["overhead_per_request_s"] = read_software(
        software, pair.series.num_seqs
    )
    if "choices" in cost:
        settings["swap_waits"] = "all in"  # what the engine does: see CudaMoves
        cost["path"] = str(profile)
    return values


def section(sides: Sides) -> str:
    """Both tables in Markdown, and what they say about the goals."""
    is_below = sides.real.index.get_level_values("load") <= KNEE
    below, above = sides.of(is_below), sides.of(~is_below)
    return "\n".join([*_markdown(_compared(below)), "", *_verdicts(below), "", *_overloads(above)])


def _compared(sides: Sides) -> Iterator[Sequence[str]]:
    rows = zip(sides.ours.iterrows(), sides.real.iloc, sides.errors.iloc, strict=True)
    for ((_, about, load), ours), real, errors in rows:
        cells = [f"{_value(name, ours[name])} / {_value(name, real[name])}" for name in JUDGED]
        off = [
            "" if pd.isna(errors[name]) else f", {errors[name]:+.1f}{_unit(name)}"
            for name in JUDGED
        ]
        yield about, f"{load:g}", *map("".join, zip(cells, off, strict=True))


def _verdicts(sides: Sides) -> Iterator[str]:
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
    """The ranges of simulated and measured values over the seeds, bold where the simulated mean is
    outside; and how many figures are inside, as means over the seeds and seed by seed.
    """
    cells, means, each = [], list[bool](), list[bool]()
    seeds = sides.real.groupby(INDEX[1:], sort=False).filter(lambda rows: len(rows) > 1)
    for (about, load), real in seeds.groupby(INDEX[1:], sort=False):
        ours, line = sides.ours.loc[real.index], [str(about), f"{load:g}"]
        for name in JUDGED:
            both = ours[name], real[name]
            low, high = real[name].min() * (1 - WIDER), real[name].max() * (1 + WIDER)
            is_mean_inside = low <= ours[name].mean() <= high
            cell = " / ".join(
                f"{_value(name, side.min())} to {_value(name, side.max())}" for side in both
            )
            line.append("-" if pd.isna(low) else cell if is_mean_inside else f"**{cell}**")
            if not pd.isna(low) and (high or ours[name].any()):
                means, each = [*means, is_mean_inside], [*each, *ours[name].between(low, high)]
        cells.append(line)
    yield from _markdown(cells)
    yield ""
    yield (
        f"Inside the measured range, widened by {WIDER:.0%}: {sum(means)} of {len(means)} figures "
        f"({sum(means) / max(1, len(means)):.0%}); seed by seed {sum(each)} of {len(each)}. "
        "Zeros on both sides do not count."
    )


def _value(name: str, value: float) -> str:
    times, form = UNITS.get(name, (1, ",.0f"))
    return "-" if pd.isna(value) else f"{times * value:{form}}"


def _unit(name: str) -> str:
    return " points" if name == POINTS else "%"


def _markdown(rows: Iterable[Sequence[str]]) -> list[str]:
    names = ["pair", "load", *NAMES]
    return ["| " + " | ".join(line) + " |" for line in (names, ["---"] * len(names), *rows)]


def draw(sides: Sides, path: Path) -> None:
    """A column of panels for each series that has all loads; means over the seeds, and their
    range.
    """
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
    for at, (real, ours) in enumerate(zip(*means, strict=True)):
        text = (
            f"{ours - real:+.1f}"
            if name == "hit_rate"
            else f"{100 * (ours / real - 1):+.0f}%"
            if real
            else ""
        )
        panel.annotate(
            text, (at, max(real, ours)), (0, 6), textcoords="offset points", ha="center", fontsize=7
        )
