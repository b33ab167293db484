"""A reproduction as parts of a page: the paper's figures first, what was published beside ours, then the scorecard."""

import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

import pandas as pd
import yaml

from experiments.compare.finished_run import FinishedRun
from experiments.compare.what_it_was import what_it_was
from experiments.pages.html import (
    LONG,
    NUMBER,
    SMALL,
    VERDICT,
    details,
    fold,
    gallery,
    heading,
    paragraph,
    picture,
    section,
    table,
)
from experiments.paper.scorecard import BESIDE, COLUMNS, counted, short
from experiments.runs.lab import CONF

NUMBERS = {"published", "error", "margin"}
LONG_ONES = {"tolerance", "note"}
FIRST = [*COLUMNS[: COLUMNS.index("error") + 1], "verdict"]  # what to read without scrolling
BESIDE_OURS = ("fig2", "fig13")


def reproduction(folder: Path, card: pd.DataFrame, runs: Sequence[FinishedRun]) -> Iterator[str]:
    """All parts. card: scorecard.csv as text."""
    drawn = sorted(folder.glob("*.png"), key=_number)
    yield heading(2, f"Figures of {folder.name}")
    yield gallery(section(heading(3, title(path.stem)), _picture(path, card)) for path in drawn)
    yield heading(2, "Published and simulated")
    yield from (_beside(path.stem, of_figure(card, path.stem)) for path in drawn if path.stem in BESIDE_OURS)
    yield heading(2, "Scorecard")
    yield paragraph(counted(card))
    yield _card(card)
    yield heading(2, "Configurations")
    yield fold(f"{len(runs)} runs", *(details(f"{run.name}: {what_it_was(run)}", _config(run)) for run in runs))


def title(stem: str) -> str:
    """What a figure is called: the first line of its drawing's file."""
    path = CONF / "figure" / f"{stem}.yaml"
    if not path.is_file():
        return stem
    drawing = yaml.safe_load(path.read_text(encoding="utf-8"))["drawing"]
    return str(import_module(drawing).__doc__).partition("\n")[0].rstrip(".")


def of_figure(card: pd.DataFrame, stem: str) -> pd.DataFrame:
    """The scorecard's rows of a figure and its panels that have both numbers; Figure 1 has none of Figure 11's."""
    rows = card[card["figure"].str.fullmatch(re.escape(stem) + "[a-z]?")]
    return rows[rows["simulated"] != ""]


def described(stem: str, rows: pd.DataFrame) -> str:
    """What the figure says, for those who do not see it: its numbers, published and simulated."""
    said = [
        f"{' '.join(filter(None, (row['setting'], row['system'])))}, {row['quantity'].replace('_', ' ')}: "
        f"{_text(row['simulated'])}" + (f" (published {row['published']})" if row["published"] else "")
        for row in rows.to_dict("records")
    ]
    return f"{title(stem)}. {'; '.join(said)}".rstrip(". ") + "."


def _picture(path: Path, card: pd.DataFrame) -> str:
    return picture(path.read_bytes(), described(path.stem, of_figure(card, path.stem)), "", SMALL)


def _beside(stem: str, rows: pd.DataFrame) -> str:
    """Published and simulated in a table of their own."""
    cells = [
        [f"{row['setting']}, {row['system']}: {row['quantity'].replace('_', ' ')}", row["published"] or "-",
         _text(row["simulated"]), row["error"] or "-"]
        for row in rows.to_dict("records")
    ]  # fmt: skip
    head = ["quantity", "published", "simulated", "difference"]
    return table(f"{title(stem)}: published and simulated", head, cells, ["", NUMBER, NUMBER, NUMBER])


def _card(card: pd.DataFrame) -> str:
    names = list(dict.fromkeys([*FIRST, *COLUMNS, *(name for name in BESIDE if name in card)]))
    looks = {**dict.fromkeys(NUMBERS, NUMBER), **dict.fromkeys(LONG_ONES, LONG), "verdict": VERDICT, "setting": "words"}
    rows = [[_text(row.get(name, "")) for name in names] for row in card.to_dict("records")]
    return table("every published number", names, rows, [looks.get(name, "") for name in names], list(card["verdict"]))


def _text(text: str) -> str:
    try:
        return short(float(text)) if "." in text else text
    except ValueError:
        return text


def _config(run: FinishedRun) -> str:
    return (run.folder / "config.yaml").read_text(encoding="utf-8")


def _number(path: Path) -> tuple[bool, int, str]:
    """Table 1, then the figures in the paper's order, then the others."""
    digits = re.fullmatch(r"fig(\d+)", path.stem)
    return (not digits and path.stem != "table1", int(digits[1]) if digits else 0, path.stem)
