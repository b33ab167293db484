"""Data frames as CSV files whose text no spreadsheet takes for a formula."""

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd

from testbed.core.cells import guarded, quoting, unguarded


def csv_text(table: pd.DataFrame) -> str:
    """The text of a CSV file, without the index."""
    cells = _each_text(guarded, table)
    values = chain(cells.columns, *(cells[name] for name in _texts(cells)))
    return str(cells.to_csv(index=False, quoting=quoting(values)))


def read_csv_table(path: str | Path, **options: Any) -> pd.DataFrame:
    """The table in a CSV file; `options` are those of pandas."""
    return _each_text(unguarded, pd.read_csv(path, **options))


def _each_text(change: Callable[[object], object], table: pd.DataFrame) -> pd.DataFrame:
    """The table with every name of a column and every text in a cell changed."""
    changed = table.copy()
    for name in _texts(table):
        column = table[name]
        texts = [change(value) for value in column]
        changed[name] = pd.Series(texts, index=column.index, dtype=column.dtype)
    return changed.set_axis([change(name) for name in table.columns], axis="columns")


def _texts(table: pd.DataFrame) -> list[str]:
    """The names of the columns that may have texts."""
    return list(table.select_dtypes(include=["object", "string"]))
