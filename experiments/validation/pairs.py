"""The simulated side of the runs that `testbed pairs` made on a GPU, and tables of both sides.

It needs no GPU: a simulated run has the config of the real one, so the same requests, policy and scheduler. Costs are
those of the profile measured on the engine and the software time that was measured before the pairs began; nothing is
fitted to a pair.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from testbed.build import build
from testbed.config import RunConfig
from testbed.core.errors import InputError
from testbed.experiments.runs.run_folder import write_everything
from testbed.experiments.runs.whole_files import SUMMARY, write_json, write_text
from testbed.kernels.engine.pairs.figures import FIGURES, figures
from testbed.kernels.engine.pairs.plan import KNEE, PAIRS, Pair, Series, Stage
from testbed.kernels.engine.pairs.software import read_software
from testbed.run import run

Figures = Mapping[str, float | None]
JUDGED = FIGURES[2:]  # not the numbers of requests
POINTS = ("hit_rate",)  # errors are differences in points
GOALS = {"mean_batch": 3.0, "hit_rate": 1.0, "tpot_mean_s": 5.0}  # percent, or points, up to KNEE
WIDER = 0.05  # by which the measured range is widened, beyond KNEE
UNITS = {"hit_rate": (100, ".1f"), "ttft_mean_s": (1000, ".1f"), "ttft_p50_s": (1000, ".1f"),
         "tpot_mean_s": (1000, ".2f"), "mean_batch": (1, ".2f")}  # fmt: skip
NAMES = ("batch", "hit rate, %", "preemptions", "recomputed tokens", "TTFT mean, ms", "TTFT p50, ms", "TPOT, ms",
         "tokens/s")  # fmt: skip


@dataclass(frozen=True)
class Both:
    """One pair: its figures as measured and as simulated."""

    pair: Pair
    real: Figures
    ours: Figures

    def error(self, name: str) -> float | None:
        """Percent of the measured value, or points; None where a side has no value, or the measured one is 0."""
        real, ours = self.real[name], self.ours[name]
        if real is None or ours is None:
            return None
        if name in POINTS:
            return 100 * (ours - real)
        return 100 * (ours / real - 1) if real else None


@dataclass(frozen=True)
class Overload:
    """The pairs of one series and load with several seeds."""

    series: Series
    load: float
    seeds: Sequence[Both]

    def span(self, name: str) -> tuple[float, float] | None:
        """The lowest and the highest measured value."""
        values = [value for one in self.seeds if (value := one.real[name]) is not None]
        return (min(values), max(values)) if values else None

    def simulated(self, name: str) -> list[float]:
        """The simulated value of each seed."""
        return [value for one in self.seeds if (value := one.ours[name]) is not None]

    def happens(self, name: str) -> bool:
        """Whether a side has anything else than zeros."""
        return any((*(self.span(name) or ()), *self.simulated(name)))

    def is_inside(self, name: str, value: float) -> bool:
        """Whether a value lies in the measured range, widened."""
        low, high = self.span(name) or (0.0, 0.0)
        return low * (1 - WIDER) <= value <= high * (1 + WIDER)


def simulated(runs: Path, profile: Path, stage: Stage, out: Path | None = None) -> list[Both]:
    """Every pair that `runs` has a measured line of, simulated; `out` gets the simulated run folders."""
    table, software = read_measured(runs), runs / "software.csv"
    found = [
        Both(pair, table[pair.name], simulate(pair, with_costs(pair, stage, profile, software), out))
        for pair in PAIRS
        if pair.name in table
    ]
    if not found:
        raise InputError(f"{runs}: has no measured run of a pair (run testbed pairs on a GPU first)")
    return found


def read_measured(runs: Path) -> dict[str, Figures]:
    """The measured figures by the name of the pair."""
    path = runs / "measured.csv"
    if not path.is_file():
        raise InputError(f"{path}: no such file (testbed pairs writes it, on a GPU)")
    with path.open(newline="", encoding="utf-8") as file:
        return {
            f"{row['series']}-{float(row['load']):g}-{row['seed']}": {
                name: float(row[name]) if row[name] else None for name in FIGURES
            }
            for row in csv.DictReader(file)
        }


def simulate(pair: Pair, config: dict[str, Any], out: Path | None) -> Figures:
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
    """The config of a pair, simulated by a profile and by the software times of requests with as many sequences."""
    values: dict[str, Any] = pair.config(stage)
    del values["engine"]
    cost = values["cost"]
    settings = cost.get("choices") or cost["efficiencies"]
    settings["overhead_s"], settings["overhead_per_request_s"] = read_software(software, pair.series.num_seqs)
    if "choices" in cost:
        settings["swap_waits"] = "all in"  # what the engine does: see CudaMoves
        cost["path"] = str(profile)
    return values


def overloads(pairs: Sequence[Both]) -> list[Overload]:
    """The pairs beyond KNEE by series and load, those with more than one seed."""
    groups: dict[tuple[str, float], list[Both]] = {}
    for one in pairs:
        if one.pair.load > KNEE:
            groups.setdefault((one.pair.series.name, one.pair.load), []).append(one)
    return [Overload(group[0].pair.series, load, group) for (_, load), group in groups.items() if len(group) > 1]


def section(pairs: Sequence[Both]) -> str:
    """Both tables in Markdown, and what they say about the goals."""
    below, above = [one for one in pairs if one.pair.load <= KNEE], overloads(pairs)
    first = markdown(("pair", "load", *NAMES), [[one.pair.series.about, f"{one.pair.load:g}", *_cells(one)]
                                                for one in below])  # fmt: skip
    second = markdown(("pair", "load", *NAMES), [[one.series.about, f"{one.load:g}", *_ranges(one)] for one in above])
    return "\n".join([*first, "", *_verdicts(below), "", *second, "", *_inside(above)])


def _cells(one: Both) -> Iterator[str]:
    """Simulated / measured, and the error."""
    for name in JUDGED:
        error, unit = one.error(name), " points" if name in POINTS else "%"
        both = f"{_value(name, one.ours[name])} / {_value(name, one.real[name])}"
        yield both if error is None else f"{both}, {error:+.1f}{unit}"


def _ranges(one: Overload) -> Iterator[str]:
    """The simulated and the measured range; bold where the simulated mean is outside."""
    for name in JUDGED:
        ours, real = one.simulated(name), one.span(name)
        if real is None:
            yield "-"
            continue
        cell = " / ".join(
            f"{_value(name, low)} to {_value(name, high)}" for low, high in ((min(ours), max(ours)), real)
        )
        yield cell if one.is_inside(name, fmean(ours)) else f"**{cell}**"


def _verdicts(below: Sequence[Both]) -> Iterator[str]:
    """For each goal the pairs that keep it, and the misses."""
    for name, limit in GOALS.items():
        errors = [(one.pair, error) for one in below if (error := one.error(name)) is not None]
        missed = [f"{pair.name} {error:+.1f}" for pair, error in errors if abs(error) > limit]
        unit = " points" if name in POINTS else "%"
        title = NAMES[JUDGED.index(name)].split(",")[0]
        yield f"- {title} within {limit:g}{unit}: {len(errors) - len(missed)} of {len(errors)} pairs" + (
            f"; missed by {', '.join(missed)}" if missed else ""
        )


def _inside(above: Sequence[Overload]) -> Iterator[str]:
    """How many figures are inside, as means over the seeds and seed by seed."""
    judged = [(one, name) for one in above for name in JUDGED if one.span(name) and one.happens(name)]
    means = [one.is_inside(name, fmean(one.simulated(name))) for one, name in judged]
    each = [one.is_inside(name, value) for one, name in judged for value in one.simulated(name)]
    yield (
        f"Inside the measured range, widened by {WIDER:.0%}: {sum(means)} of {len(means)} figures "
        f"({sum(means) / max(1, len(means)):.0%}); seed by seed {sum(each)} of {len(each)}. "
        "Zeros on both sides do not count."
    )


def _value(name: str, value: float | None) -> str:
    times, form = UNITS.get(name, (1, ",.0f"))
    return "-" if value is None else f"{times * value:{form}}"


def markdown(names: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    lines = [names, ["---"] * len(names), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]
