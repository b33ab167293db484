"""The ladder's tables as files: CSV with the device in the first line, so that table and figure need no GPU."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from testbed.core.errors import InputError

Row = Mapping[str, object]


def write_rows(path: Path, rows: Sequence[Row], about: Mapping[str, object]) -> None:
    """One file of rows that have the same columns."""
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write("# " + ", ".join(f"{key} {value}" for key, value in about.items()) + "\n")
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read_rows(path: Path) -> tuple[str, list[dict[str, str]]]:
    """What the first line says of the device, and the rows."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise InputError(f"{path} is missing: `python -m kernels.ladder --out FOLDER` writes it on a GPU") from None
    if len(lines) < 3 or not lines[0].startswith("# "):
        raise InputError(f"{path} is no table of the ladder: its first line must say the device, then header and rows")
    return lines[0].removeprefix("# "), list(csv.DictReader(lines[1:]))
