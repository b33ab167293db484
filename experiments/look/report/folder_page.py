"""The page that `testbed report` writes: the parts of each folder, by the command that wrote the
folder.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
from markupsafe import Markup

from testbed.core.errors import InputError
from testbed.experiments.look.compare.differences import (
    are_numbers,
    independent_differences,
    words_of_each,
)
from testbed.experiments.look.compare.finished_run import FinishedRun, read_run
from testbed.experiments.look.compare.tables import engines_table
from testbed.experiments.look.pages.page import (
    NUMBER,
    Table,
    render,
    whole_page,
)
from testbed.experiments.look.report.reproduction_section import CARD, reproduction
from testbed.experiments.look.report.setting_tables import columns_table, setting_tables
from testbed.experiments.look.run_charts import charts_of
from testbed.experiments.runs.points import Point, are_replicated
from testbed.experiments.runs.quantities import main_numbers, number, quantities
from testbed.experiments.runs.sweep_table import futures_of, sweep_charts, varying
from testbed.experiments.runs.whole_files import SUMMARY
from testbed.run.metrics import in_words
from testbed.run.summaries import costs_of, flat


def one_run(run: FinishedRun, title: str, *, alone: bool = False) -> Markup:
    """A card: main numbers, and behind clicks the charts, all numbers and the config; `alone`: with
    its charts open.
    """
    numbers = [(quantity.label, quantity.value(run.summary)) for quantity in quantities()]
    rows = [[label, number(value)] for label, value in numbers if value is not None]
    return render(
        "look/report/run.html",
        run=run,
        title=title,
        alone=alone,
        anchor=anchor(title),
        overload=run.overload and in_words(run.overload),
        charts=charts_of(run),
        main={title: text for title, (text,) in main_numbers([run.summary]).items()},
        engines=engines_table(run, title),
        numbers=Table(f"All numbers of {title}", ["quantity", "value"], rows, ["", NUMBER]),
    )


def anchor(title: str) -> str:
    """The fragment of a run's card."""
    return "".join(letter if letter.isalnum() else "-" for letter in title)


def many_runs(folder: str, runs: Sequence[FinishedRun]) -> Markup:
    """Curves of a sweep, a table with the differing keys as columns, and a card for each run with
    tables.
    """
    runs, different = _by_differences(runs)
    names = [words or run.name for run, words in zip(runs, words_of_each(different), strict=True)]
    named = list(zip(runs, names, strict=True))
    titles = [name if name == run.name else f"{name} ({run.name})" for run, name in named]
    points = [
        Point(dict(zip(different, values, strict=True)), run.summary, run.name)
        for run, values in zip(runs, different.to_numpy().tolist(), strict=True)
    ]
    return render(
        "look/report/runs.html",
        folder=folder,
        names=names,
        axes=list(different.columns),
        first=runs[0],
        sweep=sweep_charts(different, [flat(run.summary) for run in runs]),
        settings=setting_tables(points) if are_replicated(points) else [],
        table=_all_runs(points),
        equal=_equal(named),
        cards=[
            (title, anchor(title), one_run(run, title))
            for run, title in zip(runs, titles, strict=True)
            if charts_of(run)
        ],
    )


def _equal(named: Sequence[tuple[FinishedRun, str]]) -> list[list[str]]:
    """The names of runs whose numbers are all the same, if there are several."""
    names = dict[tuple[float | None, ...], list[str]]()
    for run, name in named:
        numbers = tuple(quantity.value(run.summary) for quantity in quantities())
        names.setdefault(numbers, []).append(name)
    return [alike for alike in names.values() if len(alike) > 1]


def _by_differences(runs: Sequence[FinishedRun]) -> tuple[Sequence[FinishedRun], pd.DataFrame]:
    """The runs in the order of their differing values, and those values, a row for each run."""
    different = independent_differences(runs)
    if len(runs) > 1:
        different = different.sort_values(
            list(different),
            key=lambda values: pd.to_numeric(values) if are_numbers(values) else values,
        )
    return [runs[i] for i in different.index], different.reset_index(drop=True)


def _all_runs(points: Sequence[Point]) -> Table:
    """A row for each run: its values of the differing keys, its main numbers, its folder."""
    left = {
        name: ["-" if point.values[name] == "null" else point.values[name] for point in points]
        for name in points[0].values
    }
    results, same = varying(main_numbers([point.summary for point in points]))
    folders = {"run": [point.folder for point in points]}
    caption = "; ".join(["All runs", *same])
    return columns_table(caption, {**left, **futures_of(points)}, {**results, **folders})


def folder_page(folders: Sequence[Path]) -> str:
    """The whole page."""
    title = f"Testbed report: {', '.join(folder.resolve().name for folder in folders)}"
    parts = [part for folder in folders for part in _folder(folder)]
    return whole_page(title=title, parts=parts)


def _folder(folder: Path) -> Iterator[Markup]:
    """The parts of one folder, by the command that wrote it."""
    paths = (folder / "runs" if (folder / CARD).is_file() else folder).glob(f"*/{SUMMARY}")
    runs = [read_run(path.parent.name, path.parent) for path in sorted(paths)]
    if (folder / CARD).is_file():
        card = pd.read_csv(folder / CARD, keep_default_na=False, dtype=str)
        yield reproduction(folder, card, runs)
    elif (folder / SUMMARY).is_file():
        runs = [read_run(folder.resolve().name, folder)]
        yield one_run(runs[0], f"Run {runs[0].name}", alone=True)
    elif runs:
        yield many_runs(folder.resolve().name, runs)
    else:
        raise InputError(
            key=folder,
            problem=f"contains neither {CARD} nor {SUMMARY}, nor folders of runs",
            remedy="give a folder of results, of runs, or of one run",
        )
    yield _costs(runs)


def _costs(runs: Sequence[FinishedRun]) -> Markup:
    """The origin of the costs with the errors of such costs, and each different profile once."""
    costs = sorted({costs_of(run.summary) for run in runs} - {""})
    title_of_text = {}
    for run in runs:
        profile = run.summary.get("cost_profile")
        if profile:
            text = json.dumps(profile, indent=2)
            title_of_text[text] = (
                f"Profile: {profile.get('source', '')} {profile.get('device', '')}"
            )
    profiles = [(title_of_text[text], text) for text in sorted(title_of_text)]
    return render("look/report/costs.html", costs=costs, profiles=profiles)
