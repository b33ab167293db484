"""The page that `testbed report` writes: the parts of each folder, by the command that wrote the folder."""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import hydra.utils
import pandas as pd
import yaml
from markupsafe import Markup

from testbed.core.errors import InputError
from testbed.experiments.compare.finished_run import FinishedRun, read_run
from testbed.experiments.pages.page import NUMBER, VERDICT, Picture, Table, render
from testbed.experiments.paper.scorecard import ON, counted, short, what_of
from testbed.experiments.report.run_parts import many_runs, one_run
from testbed.experiments.runs.choice_names import CONF
from testbed.experiments.runs.summary_table import costs_of
from testbed.experiments.runs.whole_files import SUMMARY

CARD = "scorecard.csv"


def folder_page(folders: Sequence[Path]) -> str:
    """The whole page."""
    title = f"Testbed report: {', '.join(folder.resolve().name for folder in folders)}"
    return render("pages/page.html", title=title, parts=[part for folder in folders for part in _folder(folder)])


def _folder(folder: Path) -> Iterator[Markup]:
    """The parts of one folder, by the command that wrote it."""
    runs = _runs(folder / "runs" if (folder / CARD).is_file() else folder)
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
            f"{folder}: contains neither {CARD} nor {SUMMARY}, nor folders of runs "
            "(give a folder of results, of runs, or of one run)"
        )
    yield _profiles([run.summary for run in runs])


def _runs(folder: Path) -> list[FinishedRun]:
    """The finished runs in a folder, by name."""
    return [read_run(path.parent.name, path.parent) for path in sorted(folder.glob(f"*/{SUMMARY}"))]


def _profiles(summaries: Sequence[dict[str, Any]]) -> Markup:
    """Where the costs came from and how far off such were; each different profile that they came from, once."""
    costs = sorted({costs_of(summary) for summary in summaries} - {""})
    found = {json.dumps(s["cost_profile"], indent=2): s["cost_profile"] for s in summaries if s.get("cost_profile")}
    titles = {text: f"Profile: {p.get('source', '')} {p.get('device', '')}" for text, p in found.items()}
    return render("report/costs.html", costs=costs, profiles=[(titles[text], text) for text in sorted(titles)])


def reproduction(folder: Path, card: pd.DataFrame, runs: Sequence[FinishedRun]) -> Markup:
    """All parts of a reproduction. card: scorecard.csv as text."""
    drawn = sorted(folder.glob("*.png"), key=_number)
    pictures = [Picture(path.read_bytes(), described(path.stem, of_figure(card, path.stem))) for path in drawn]
    return render(
        "report/reproduction.html",
        folder=folder.name,
        figures=zip([title(path.stem) for path in drawn], pictures, strict=True),
        counted=counted(card),
        scored=[_scored(str(figure), rows) for figure, rows in card.groupby("figure", sort=False)],
        runs=runs,
    )


def title(stem: str) -> str:
    """A figure's title: the first docstring line of its drawing."""
    path = CONF / "figure" / f"{stem}.yaml"
    if not path.is_file():
        return stem.replace("sec", "Section ")
    drawing = yaml.safe_load(path.read_text(encoding="utf-8"))["drawing"]
    return str(hydra.utils.get_method(drawing).__doc__).partition("\n")[0].rstrip(".")


def of_figure(card: pd.DataFrame, stem: str) -> pd.DataFrame:
    """The scorecard's rows of a figure and its panels that have both numbers; Figure 1 has none of Figure 11's."""
    rows = card[card["figure"].str.fullmatch(re.escape(stem) + "[a-z]?")]
    return rows[rows["simulated"] != ""]


def described(stem: str, rows: pd.DataFrame) -> str:
    """The figure's text alternative: its numbers, published and simulated."""
    sentences = [
        f"{what_of(row)}: {_text(row['simulated'])}" + (f" (published {row['published']})" if row["published"] else "")
        for row in rows.to_dict("records")
    ]
    return f"{title(stem)}. {'; '.join(sentences)}".rstrip(". ") + "."


def _scored(figure: str, card: pd.DataFrame) -> tuple[Table, list[str]]:
    """The rows of one figure, the words that all settings begin with in its caption, and what is known about some."""
    words = [str(setting).split() for setting in card["setting"]]
    shared = [column[0] for column in takewhile(lambda column: len(set(column)) == 1, zip(*words, strict=False))]
    rows = card.assign(setting=[" ".join(one[len(shared) :]) for one in words]).to_dict("records")
    names = ["verdict", "published", "simulated", "error", "tolerance", *(name for name in card if name.startswith(ON))]
    head = [str(name) for name in names if any(row.get(name) for row in rows)]
    cells = [[what_of(row), *(_text(row[name]) for name in head)] for row in rows]
    stem = re.sub(r"(?<=\d)[a-z]$", "", figure)
    caption = title(stem).replace(":", f"{figure.removeprefix(stem)}:", 1)
    caption += f" ({' '.join(shared).rstrip(',')})" * bool(shared)
    looks = ["", *({"verdict": VERDICT, "tolerance": ""}.get(name, NUMBER) for name in head)]
    table = Table(caption, ["quantity", *head], cells, looks, list(card["verdict"]))
    return table, [f"{what_of(row)}: {row[name]}" for row in rows for name in ("note", "cause") if row.get(name)]


def _text(text: str) -> str:
    try:
        return short(float(text))
    except ValueError:
        return text


def _number(path: Path) -> tuple[bool, int, str]:
    """Table 1, then the figures in the paper's order, then the others."""
    digits = re.fullmatch(r"fig(\d+)", path.stem)
    return (not digits and path.stem != "table1", int(digits[1]) if digits else 0, path.stem)
