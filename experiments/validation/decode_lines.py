"""The table of measured decode iterations in kernels/results/h200-engine.md, from the rows kept beside it."""

from pathlib import Path

import pandas as pd

from experiments.validation.pair_table import markdown

COLUMNS = {
    "model": "model",
    "batch": "batch",
    "iteration us": "duration_us",
    "GPU us": "gpu_us",
    "host us": "host_us",
    "idle": "idle_share",
    "GPU / kernels": "over_kernels",
    "bytes / GPU": "of_bytes",
}


def decode_lines(folder: Path) -> list[str]:
    """The lines of the table, of every decodes-MODEL.csv in a folder, the largest model first; [] without any."""
    tables = [pd.read_csv(path, comment="#") for path in folder.glob("decodes-*.csv")]
    if not tables:
        return []
    tables.sort(key=lambda table: -float(table["bytes_us"].max()))
    return markdown(list(COLUMNS), [_cells(row) for table in tables for row in table.to_dict("records")])


def renewed(text: str, table: list[str]) -> str:
    """A page whose table of the same head is `table` now; a page without one stays as it is."""
    lines = text.split("\n")
    if not table or table[0] not in lines:
        return text
    first = last = lines.index(table[0])
    while last < len(lines) and lines[last].startswith("|"):
        last += 1
    return "\n".join([*lines[:first], *table, *lines[last:]])


def _cells(row: dict[str, float | str]) -> list[str]:
    numbers = {name: float(row[key]) for name, key in COLUMNS.items() if name != "model"}
    whole = [f"{numbers[name]:.0f}" for name in ("batch", "iteration us", "GPU us", "host us")]
    ratios = [f"{numbers[name]:.3f}" for name in ("GPU / kernels", "bytes / GPU")]
    return [str(row["model"]), *whole, f"{100 * numbers['idle']:.1f}%", *ratios]
