"""`testbed report`: one self-contained HTML page of results."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.commands.arguments.report import parser
from experiments.compare.finished_run import FinishedRun, read_run
from experiments.pages.html import details, heading, page, paragraph
from experiments.report.paper_parts import reproduction
from experiments.report.run_parts import many_runs, one_run
from experiments.runs.whole_files import SUMMARY, write_text
from testbed.core.errors import InputError

CARD = "scorecard.csv"


def main(argv: list[str]) -> None:
    """Write the page."""
    options = parser().parse_args(argv)
    text = render(options.folders)
    out = options.out or options.folders[0] / "report.html"
    write_text(out, text)
    print(f"report: {out}")


def render(folders: Sequence[Path]) -> str:
    """The whole page."""
    parts = [part for folder in folders for part in _folder(folder)]
    return page(f"Testbed report: {', '.join(folder.resolve().name for folder in folders)}", *parts)


def _folder(folder: Path) -> Iterator[str]:
    """The parts of one folder, whichever command made it."""
    runs = _runs(folder / "runs" if (folder / CARD).is_file() else folder)
    if (folder / CARD).is_file():
        card = pd.read_csv(folder / CARD, keep_default_na=False, dtype=str)
        yield from reproduction(folder, card, runs)
    elif (folder / SUMMARY).is_file():
        runs = [read_run(folder.resolve().name, folder)]
        yield one_run(runs[0], 2, f"Run {runs[0].name}")
    elif runs:
        yield from many_runs(folder.resolve().name, runs)
    else:
        raise InputError(
            f"{folder}: holds neither {CARD} nor {SUMMARY}, nor folders of runs; "
            "give a folder of results, of runs, or of one run"
        )
    yield from _profiles(run.summary for run in runs)


def _runs(folder: Path) -> list[FinishedRun]:
    """The finished runs in a folder, by name."""
    return [read_run(path.parent.name, path.parent) for path in sorted(folder.glob(f"*/{SUMMARY}"))]


def _profiles(summaries: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Each different profile that priced a run, once."""
    texts = {json.dumps(s["cost_profile"], indent=2) for s in summaries if s.get("cost_profile")}
    yield heading(2, "Prices")
    if not texts:
        yield paragraph("No measured profile was used: prices come from the analytic cost model in the configuration.")
    for text in sorted(texts):
        fingerprint = json.loads(text)
        yield details(f"Profile: {fingerprint.get('source', '')} {fingerprint.get('device', '')}", text)
