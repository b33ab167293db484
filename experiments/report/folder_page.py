"""The page that `testbed report` writes: the parts of each folder, by the command that wrote the
folder.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from markupsafe import Markup

from testbed.core.errors import InputError
from testbed.description import costs_of, flat
from testbed.experiments.compare.differences import (
    are_numbers,
    independent_differences,
    words_of_each,
)
from testbed.experiments.compare.finished_run import FinishedRun, read_run
from testbed.experiments.compare.tables import charts as compared_charts
from testbed.experiments.compare.tables import engines_table
from testbed.experiments.pages.page import (
    NUMBER,
    VERDICT,
    Chart,
    Picture,
    Table,
    render,
    whole_page,
)
from testbed.experiments.paper.scorecard import ON, short
from testbed.experiments.paper.scorecard_words import (
    NOT_JUDGED,
    heading,
    published_words,
    result_of,
    tolerance_words,
    what_of,
)
from testbed.experiments.report.related_runs import equal, related, words_of
from testbed.experiments.runs.choice_names import CONF
from testbed.experiments.runs.csv_tables import read_csv_table
from testbed.experiments.runs.plots import run_charts
from testbed.experiments.runs.summary_table import (
    main_numbers,
    number,
    quantities,
)
from testbed.experiments.runs.sweeps import sweep_charts
from testbed.experiments.runs.whole_files import SUMMARY
from testbed.metrics import in_words

MOST_CURVES = 8
CARD = "scorecard.csv"
MARKS = {"within": "pass", "outside": "miss"}  # classes of rows, which colour them


def one_run(run: FinishedRun, title: str, *, alone: bool = False) -> Markup:
    """A card: main numbers, and behind clicks the charts, all numbers and the config; `alone`: with
    its charts open.
    """
    numbers = [(quantity.label, quantity.value(run.summary)) for quantity in quantities()]
    rows = [[label, number(value)] for label, value in numbers if value is not None]
    return render(
        "report/run.html",
        run=run,
        title=title,
        alone=alone,
        anchor=anchor(title),
        overload=run.overload and in_words(run.overload),
        charts=_charts(run),
        main={title: text for title, (text,) in main_numbers([run.summary]).items()},
        engines=engines_table(run, title),
        numbers=Table(f"All numbers of {title}", ["quantity", "value"], rows, ["", NUMBER]),
    )


def _charts(run: FinishedRun) -> list[Chart]:
    if run.requests is None or run.spans is None:
        return []
    what = run.summary.get("run", {})
    num_slots = int(what.get("pool_slots") or 1) * int(what.get("replicas") or 1)
    return list(run_charts(run.requests, run.spans, num_slots))


def anchor(title: str) -> str:
    """The fragment of a run's card."""
    return "".join(letter if letter.isalnum() else "-" for letter in title)


def many_runs(folder: str, runs: Sequence[FinishedRun]) -> Markup:
    """Differences, curves, a table with the differing keys as columns, and a card for each run with
    tables.
    """
    different = independent_differences(runs)
    if len(runs) > 1:
        different = different.sort_values(
            list(different),
            key=lambda values: pd.to_numeric(values) if are_numbers(values) else values,
        )
    runs = [runs[i] for i in different.index]
    different = different.reset_index(drop=True)
    names = [words or run.name for run, words in zip(runs, words_of_each(different), strict=True)]
    named = list(zip(runs, names, strict=True))
    with_tables = [
        replace(run, name=name)
        for run, name in named
        if run.requests is not None and run.spans is not None
    ]
    together = [group for group in related(with_tables) if 1 < len(group) <= MOST_CURVES]
    return render(
        "report/runs.html",
        folder=folder,
        names=names,
        axes=list(different.columns),
        first=runs[0],
        sweep=sweep_charts(different, [flat(run.summary) for run in runs]),
        groups=[(words_of(group[0]), list(compared_charts(group))) for group in together],
        table=_all_runs(runs, different),
        equal=equal([replace(run, name=name) for run, name in named]),
        cards=[(name, anchor(name), one_run(run, name)) for run, name in named if _charts(run)],
    )


def _all_runs(runs: Sequence[FinishedRun], different: pd.DataFrame) -> Table:
    """A row for each run: its values of the differing keys, its main numbers, its folder."""
    main = main_numbers([run.summary for run in runs])
    rows = []
    for run, values, *numbers in zip(
        runs, different.to_numpy().tolist(), *main.values(), strict=True
    ):
        shown = ["-" if value == "null" else value for value in values]
        rows.append([*shown, *numbers, run.name])
    head = [*map(str, different.columns), *main, "run"]
    classes = [*[""] * len(different.columns), *[NUMBER] * len(main)]
    return Table("All runs", head, rows, classes)


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
        card = read_csv_table(folder / CARD, keep_default_na=False, dtype=str)
        yield reproduction(folder, card, runs)
    elif (folder / SUMMARY).is_file():
        runs = [read_run(folder.resolve().name, folder)]
        yield one_run(runs[0], f"Run {runs[0].name}", alone=True)
    elif runs:
        yield many_runs(folder.resolve().name, runs)
    else:
        raise InputError(
            f"{folder}: contains neither {CARD} nor {SUMMARY}, nor folders of runs "
            "(give a folder of results, of runs, or of one run)"
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
    return render("report/costs.html", costs=costs, profiles=profiles)


def reproduction(folder: Path, card: pd.DataFrame, runs: Sequence[FinishedRun]) -> Markup:
    """All parts of a reproduction. card: scorecard.csv as text."""
    drawn = sorted(folder.glob("*.png"), key=_number)
    pictures = [Picture(path.read_bytes(), text_alternative(path.stem, card)) for path in drawn]
    return render(
        "report/reproduction.html",
        folder=folder.name,
        figures=zip([title(path.stem) for path in drawn], pictures, strict=True),
        heading=list(heading(card)),
        scored=[_scored(str(figure), rows) for figure, rows in card.groupby("figure", sort=False)],
        runs=runs,
    )


def title(stem: str) -> str:
    """A figure's title, as its config has it."""
    path = CONF / "figure" / f"{stem}.yaml"
    if not path.is_file():
        return stem.replace("sec", "Section ")
    return str(yaml.safe_load(path.read_text(encoding="utf-8"))["title"])


def text_alternative(stem: str, card: pd.DataFrame) -> str:
    """A figure's text alternative: the numbers of it and its panels; Figure 1 has none of Figure
    11's.
    """
    rows = card[
        card["figure"].str.fullmatch(re.escape(stem) + "[a-z]?") & (card["simulated"] != "")
    ]
    sentences = [
        f"{what_of(row)}: {_text(row['simulated'])}"
        + (f" (published {row['published']})" if row["published"] else "")
        for row in rows.to_dict("records")
    ]
    return f"{title(stem)}. {'; '.join(sentences)}".rstrip(". ") + "."


def _scored(figure: str, card: pd.DataFrame) -> tuple[Table, list[str]]:
    """The table of one figure, and the notes and causes of its rows.

    The words with which all its settings begin stand in the caption instead of the rows.
    """
    words = [str(setting).split() for setting in card["setting"]]
    alike = takewhile(lambda column: len(set(column)) == 1, zip(*words, strict=False))
    shared = [column[0] for column in alike]
    shortened = [" ".join(setting[len(shared) :]) for setting in words]
    rows = card.assign(setting=shortened).to_dict("records")
    others = [name for name in card if name.startswith(ON)]
    columns = [_columns(row, others) for row in rows]
    head = [name for name in columns[0] if any(cells[name] for cells in columns)]
    cells = [
        [what_of(row), *(of[name] for name in head)] for row, of in zip(rows, columns, strict=True)
    ]
    classes = ["", *({"result": VERDICT, "tolerance": ""}.get(name, NUMBER) for name in head)]
    marks = [MARKS.get(of["result"], "") for of in columns]
    table = Table(_caption(figure, shared), ["quantity", *head], cells, classes, marks, "cards")
    remarks = []
    for row in rows:
        said = ("note",) if result_of(row) == NOT_JUDGED else ("note", "cause")
        remarks += [f"{what_of(row)}: {row[name]}" for name in said if row.get(name)]
    return table, remarks


def _columns(row: Mapping[Any, Any], others: Sequence[str]) -> dict[str, str]:
    """A row's cells by the heads of their columns. others: columns of other GPUs."""
    return {
        "result": result_of(row),
        "published": published_words({**row, "published": _text(row["published"])}),
        "simulated": _text(row["simulated"]),
        "difference": row["error"],
        "tolerance": tolerance_words(row),
        **{name: _text(row[name]) for name in others},
    }


def _caption(figure: str, shared_words: Sequence[str]) -> str:
    """The figure's title with its panel's letter, then the words that its settings share."""
    stem = re.sub(r"(?<=\d)[a-z]$", "", figure)
    caption = title(stem).replace(":", f"{figure.removeprefix(stem)}:", 1)
    if shared_words:
        caption += f" ({' '.join(shared_words).rstrip(',')})"
    return caption


def _text(text: str) -> str:
    try:
        return short(float(text))
    except ValueError:
        return text


def _number(path: Path) -> tuple[bool, int, str]:
    """Table 1, then the figures in the paper's order, then the others."""
    digits = re.fullmatch(r"fig(\d+)", path.stem)
    return (not digits and path.stem != "table1", int(digits[1]) if digits else 0, path.stem)
