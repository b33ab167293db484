"""A recorder's columns, in seconds; as a CSV file, or as data frames."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.runs.whole_files import whole
from testbed.sim.columns import Columns, request_columns, span_columns
from testbed.sim.recorder import Recorder

if TYPE_CHECKING:
    import pandas as pd


def requests(recorder: Recorder) -> "pd.DataFrame":
    """One row a request that has ended, in order of arrival; a rejected one has a reason and no times."""
    return frame(request_columns(recorder))


def spans(recorder: Recorder) -> "pd.DataFrame":
    """One row a span of identical iterations, in order of time; slots are means over its iterations."""
    return frame(span_columns(recorder))


def frame(columns: Columns) -> "pd.DataFrame":
    """The columns as a data frame."""
    import pandas as pd  # takes a third of a second, which a run from the command line need not wait

    return pd.DataFrame(columns)


def write_csv(path: Path, columns: Columns) -> None:
    """The columns under their names, missing values empty, numbers with all their digits."""
    write_cells(path, {name: column.tolist() for name, column in columns.items()})


def write_cells(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """The same of lists; None and NaN are missing."""
    cells = [["" if value is None or value != value else value for value in column] for column in columns.values()]
    with whole(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(columns)
        table.writerows(zip(*cells, strict=True))
