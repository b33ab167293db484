"""A recorder's columns, in seconds; as a CSV file, or as data frames."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from experiments.runs.whole_files import whole
from testbed.core.request import PS
from testbed.sim.recorder import NOT_YET, Recorder

if TYPE_CHECKING:
    import pandas as pd

Columns = dict[str, NDArray[Any]]


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


def request_columns(recorder: Recorder) -> Columns:
    """What `requests` has. times from arrival in s, tpot_s where there is more than one output token."""
    table = in_seconds(recorder.requests.columns())
    reasons = [recorder.rejections.get(request_id, "") for request_id in table["request_id"].tolist()]
    table["rejected"] = np.array(reasons, dtype=object)
    order = np.argsort(table["request_id"], kind="stable")
    table = {name: column[order] for name, column in table.items()}
    arrival, first, finish = (table[name] for name in ("arrival_s", "first_token_s", "finish_s"))
    with np.errstate(divide="ignore", invalid="ignore"):
        later = np.where(table["output_len"] > 1, table["output_len"] - 1, np.nan)
        table |= {"ttft_s": first - arrival, "tpot_s": (finish - first) / later, "e2e_s": finish - arrival}
    return table


def span_columns(recorder: Recorder) -> Columns:
    """What `spans` has."""
    return in_seconds(recorder.spans.columns())


def in_seconds(columns: Mapping[str, NDArray[Any]]) -> Columns:
    """Columns that end in _ps become columns that end in _s; what has not happened becomes missing."""
    table = {}
    for name, column in columns.items():
        if name.endswith("_ps"):
            known = column != NOT_YET
            seconds = column / PS
            table[f"{name[:-3]}_s"] = seconds if known.all() else np.where(known, seconds, np.nan)
        else:
            table[name] = column
    return table


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
