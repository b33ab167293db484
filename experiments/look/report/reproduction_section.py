"""The part of `testbed report` about a reproduction: its figures, and the scorecard by figure."""

import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from markupsafe import Markup

from testbed.experiments.look.compare.finished_run import FinishedRun
from testbed.experiments.look.pages.page import NUMBER, VERDICT, Picture, Table, render
from testbed.experiments.paper.futures import futures_of, remarks_on
from testbed.experiments.paper.scorecard import ON, short
from testbed.experiments.paper.scorecard_words import (
    NOT_JUDGED,
    heading,
    published_words,
    result_of,
    tolerance_words,
    what_of,
)
from testbed.experiments.runs.choice_names import CONF

CARD = "scorecard.csv"
MARKS = {"within": "pass", "outside": "miss"}  # classes of rows, which colour them


def reproduction(folder: Path, card: pd.DataFrame, runs: Sequence[FinishedRun]) -> Markup:
    """All parts of a reproduction. card: scorecard.csv as text."""
    drawn = sorted(folder.glob("*.png"), key=_number)
    pictures = [Picture(path.read_bytes(), text_alternative(path.stem, card)) for path in drawn]
    return render(
        "look/report/reproduction.html",
        folder=folder.name,
        figures=zip([title(path.stem) for path in drawn], pictures, strict=True),
        heading=[*heading(card), *remarks_on(_futures(folder))],
        scored=[_scored(str(figure), rows) for figure, rows in card.groupby("figure", sort=False)],
        runs=runs,
    )


def _futures(folder: Path) -> dict[str, str]:
    """Values of the future that the systems of the figures' tables read, by name."""
    tables = sorted(path for path in folder.glob("*.csv") if path.name != CARD)
    return futures_of([pd.read_csv(path, keep_default_na=False, dtype=str) for path in tables])


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
        names = ("note",) if result_of(row) == NOT_JUDGED else ("note", "cause")
        remarks += [f"{what_of(row)}: {row[name]}" for name in names if row.get(name)]
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
