"""The table of claims that `testbed gpu bench` has checked, from the rows that it kept."""

import csv
from pathlib import Path

import testbed.kernels

KEPT = Path(testbed.kernels.__file__).parent / "results" / "h200.csv"
COLUMNS = ("what", "case", "measured", "goal", "verdict")


def page(path: Path = KEPT) -> str:
    """The page in Markdown: a row for each claim, below device and versions."""
    about, *lines = path.read_text(encoding="utf-8").splitlines()
    rows = [row for row in csv.DictReader(lines) if row["measured"]]
    table = [COLUMNS, ("---",) * len(COLUMNS), *([row[name] for name in COLUMNS] for row in rows)]
    head = f"# Kernels on an H200\n\nPrinted by `testbed gpu bench`; {about.removeprefix('# ')}."
    return head + "\n\n" + "".join(f"| {' | '.join(cells)} |\n" for cells in table)
