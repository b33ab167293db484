"""A recorder's rows as columns in seconds: what requests.csv and iterations.csv have, of a simulation or of a GPU."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.core.request import PS
from testbed.sim.recorder import NOT_YET, Recorder

Columns = dict[str, NDArray[Any]]


def request_columns(recorder: Recorder) -> Columns:
    """One row a request that has ended, in order of arrival; a rejected one has a reason and no times.

    ttft_s, tpot_s (where there is more than one output token) and e2e_s are in seconds.
    """
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
    """One row a span of identical iterations, in order of time; slots are means over its iterations."""
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
