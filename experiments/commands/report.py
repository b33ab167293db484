"""`testbed report`: one self-contained HTML page of results."""

import base64
import html
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.commands.arguments import Parser
from experiments.paper.scorecard import BESIDE, COLUMNS, counted, short
from experiments.runs.point import SUMMARY, complete
from experiments.runs.whole_files import write_text
from testbed.core.errors import InputError

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
img { max-width: 100%; max-height: 30rem; display: block; margin: 0.5rem 0; }
table { border-collapse: collapse; font-size: 13px; }
th, td { border: 1px solid #ccc; padding: 0.15rem 0.5rem; text-align: left; vertical-align: top; }
tr.pass td:last-child { background: #d9f0d3; } tr.miss td:last-child { background: #f8d0cc; }
pre { background: #f5f5f5; padding: 0.6rem; overflow-x: auto; font-size: 12px; }
"""


def main(argv: list[str]) -> None:
    """Write the page."""
    this = Parser(
        prog="testbed report", description="Figures, scorecard, configurations and profiles on one HTML page."
    )
    this.add_argument("folders", nargs="+", type=Path, metavar="RUNS", help="of `testbed reproduce`, or run folders")
    this.add_argument("--out", type=Path, metavar="FILE", help="default: report.html in the first folder")
    options = this.parse_args(argv)
    page = render(options.folders)
    out = options.out or options.folders[0] / "report.html"
    write_text(out, page)
    print(f"report: {out}")


def render(folders: Sequence[Path]) -> str:
    """The whole page."""
    body = "".join(_folder(folder) for folder in folders)
    head = f'<meta charset="utf-8"><title>Testbed report</title><style>{STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body><h1>Testbed report</h1>{body}</body></html>\n'


def _folder(folder: Path) -> str:
    """The part of one folder, whichever command made it."""
    if (folder / "scorecard.csv").is_file():
        return _results(folder)
    summary = complete(folder)
    if summary is None:
        raise InputError(f"{folder}: holds neither scorecard.csv nor {SUMMARY}; give a folder of results, or of a run")
    parts = [_heading(2, folder.name), *map(_image, sorted(folder.glob("*.png")))]
    return "".join([*parts, _details("Summary", json.dumps(summary, indent=2)), _config(folder), _profiles([summary])])


def _results(folder: Path) -> str:
    card = pd.read_csv(folder / "scorecard.csv", keep_default_na=False, dtype=str)
    runs = sorted(path.parent for path in (folder / "runs").glob(f"*/{SUMMARY}"))
    figures = [_heading(3, path.stem) + _image(path) for path in sorted(folder.glob("*.png"))]
    parts = [_heading(2, folder.name), _heading(3, "Scorecard"), _card(card), *figures]
    summaries = [summary for run in runs if (summary := complete(run)) is not None]
    return "".join([*parts, _heading(3, "Configurations"), *map(_config, runs), _profiles(summaries)])


def _card(card: pd.DataFrame) -> str:
    names = [*COLUMNS[:-1], *BESIDE, "verdict"]
    rows = [_row(row["verdict"], [_number(row[name]) for name in names]) for row in card.to_dict("records")]
    head = "".join(f"<th>{name}</th>" for name in names)
    return f"<p>{html.escape(counted(card))}</p><table><tr>{head}</tr>{''.join(rows)}</table>"


def _row(style: str, cells: Iterable[str]) -> str:
    return f'<tr class="{html.escape(style)}">{"".join(f"<td>{html.escape(cell)}</td>" for cell in cells)}</tr>'


def _number(text: str) -> str:
    try:
        return short(float(text)) if "." in text else text
    except ValueError:
        return text


def _image(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="{html.escape(path.stem)}" src="data:image/png;base64,{data}">'


def _config(run: Path) -> str:
    return _details(f"config of run {run.name}", (run / "config.yaml").read_text(encoding="utf-8"))


def _profiles(summaries: Iterable[dict[str, Any]]) -> str:
    """Each different profile that priced a run, once."""
    texts = {json.dumps(s["cost_profile"], indent=2) for s in summaries if s.get("cost_profile")}
    if not texts:
        return "<p>No measured profile was used: prices come from the analytic cost model in the configuration.</p>"
    return _heading(3, "Profiles") + "".join(f"<pre>{html.escape(text)}</pre>" for text in sorted(texts))


def _details(title: str, text: str) -> str:
    return f"<details><summary>{html.escape(title)}</summary><pre>{html.escape(text)}</pre></details>"


def _heading(level: int, text: str) -> str:
    return f"<h{level}>{html.escape(text)}</h{level}>"
