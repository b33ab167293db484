"""One run, and a folder of runs, as parts of a page: figures, then tables."""

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd
from markupsafe import Markup

from testbed.description import flat
from testbed.experiments.compare import curves
from testbed.experiments.compare.comparison import differences
from testbed.experiments.compare.finished_run import FinishedRun
from testbed.experiments.compare.tables import readable
from testbed.experiments.pages.chart import Chart
from testbed.experiments.pages.page import NUMBER, Table, render
from testbed.experiments.runs.plots import run_charts
from testbed.experiments.runs.quantities import MAIN, QUANTITIES, main_numbers
from testbed.experiments.runs.summary_table import number
from testbed.experiments.runs.sweep_chart import legible, sweep_charts
from testbed.metrics import in_words

MOST_CURVES = 8


def one_run(run: FinishedRun, title: str, *, alone: bool = False) -> Markup:
    """A card: main numbers, and behind clicks the charts, all numbers and the config; `alone`: with its charts open."""
    numbers = [(one.label, one.value(run.summary)) for one in QUANTITIES]
    rows = [[label, number(value)] for label, value in numbers if value is not None]
    return render(
        "report/run.html",
        run=run,
        title=title,
        alone=alone,
        anchor=anchor(title),
        overload=run.overload and in_words(run.overload),
        charts=_charts(run),
        main={name: number(value) for name, value in main_numbers(run.summary).items()},
        numbers=Table(f"All numbers of {title}", ["quantity", "value"], rows, ["", NUMBER]),
    )


def _charts(run: FinishedRun) -> list[Chart]:
    if run.requests is None or run.spans is None:
        return []
    return list(run_charts(run.requests, run.spans, int(run.summary.get("run", {}).get("pool_slots") or 1)))


def anchor(title: str) -> str:
    """The fragment of a run's card."""
    return "".join(letter if letter.isalnum() else "-" for letter in title)


def many_runs(folder: str, runs: Sequence[FinishedRun]) -> Markup:
    """Differences, curves, a table with the differing keys as columns, and a card for each run with tables."""
    different = varying(runs).sort_values(list(varying(runs)), key=_as_numbers) if len(runs) > 1 else varying(runs)
    runs = [runs[i] for i in different.index]
    different = different.reset_index(drop=True)
    values = different.to_numpy().tolist()
    names = [", ".join(map(legible, different, one)) or run.name for run, one in zip(runs, values, strict=True)]
    named = list(zip(runs, names, strict=True))
    whole = [replace(run, name=name) for run, name in named if run.requests is not None and run.spans is not None]
    return render(
        "report/runs.html",
        folder=folder,
        names=names,
        axes=list(different.columns),
        first=runs[0],
        sweep=sweep_charts(different, [flat(run.summary) for run in runs]),
        charts=list(curves.charts(whole)) if 1 < len(whole) <= MOST_CURVES else [],
        table=_table(runs, different),
        cards=[(name, anchor(name), one_run(run, name)) for run, name in named if _charts(run)],
    )


def varying(runs: Sequence[FinishedRun]) -> pd.DataFrame:
    """A row per run, a column per differing config key, text before numbers, without keys that follow from others."""
    found = differences(runs).drop(index="outputs", errors="ignore")  # the choice of outputs changes no run
    shown = pd.DataFrame(dict(readable(str(key), list(found.loc[key])) for key in found.index), index=range(len(runs)))
    kept: list[str] = []
    for name in sorted(shown, key=lambda name: _are_numbers(shown[name])):
        if all(shown.groupby(other)[name].nunique().max() > 1 for other in kept):
            kept.append(str(name))
    return shown[kept]


def _are_numbers(values: pd.Series) -> bool:
    return bool(pd.to_numeric(values, errors="coerce").notna().all())


def _as_numbers(values: pd.Series) -> pd.Series:
    return pd.to_numeric(values) if _are_numbers(values) else values


def _table(runs: Sequence[FinishedRun], different: pd.DataFrame) -> Table:
    found = [main_numbers(run.summary) for run in runs]
    known = [name for name in MAIN if any(name in row for row in found)]
    rows = [
        [*("-" if value == "null" else value for value in values), *(number(row.get(name)) for name in known), run.name]
        for run, row, values in zip(runs, found, different.to_numpy().tolist(), strict=True)
    ]
    head = [*map(str, different.columns), *known, "run"]
    return Table("All runs", head, rows, [*[""] * len(different.columns), *[NUMBER] * len(known)])
