"""The requests.csv of a run of this project, read as the log of a server."""

from collections.abc import Mapping, Sequence
from itertools import compress
from typing import NamedTuple

import numpy as np

from testbed.core.errors import InputError
from testbed.core.request import Rows
from testbed.traces.csv_lengths import RESULTS
from testbed.traces.files import (
    SECONDS,
    TOKENS,
    WHOLE_NUMBERS,
    read_header,
    read_numbers,
    read_table,
    require,
)
from testbed.traces.length_model import Floats

LENGTHS = ("prompt_len", "output_len")
TIMES = ("arrival_s", "first_token_s", "finish_s")
COUNTS = ("num_seqs", "num_swaps", "num_recomputes")
COUNT = WHOLE_NUMBERS._replace(least=0)
NOT_SERVED = ("rejected", "cancelled_s")  # columns with a text if no whole answer came


class RunLog(NamedTuple):
    """times: arrival, first token and finish of each request, s."""

    rows: Rows
    times: Floats
    preemptions: int
    remarks: list[str]


def is_run(path: str) -> bool:
    """True if a CSV has the columns that a run writes and no other log has."""
    return {*LENGTHS, *TIMES, *COUNTS} <= {*read_header(path)}


def read_run(path: str) -> RunLog:
    """The served requests. Raises InputError for requests of several sequences, which a log has no
    place for, and for times out of order.
    """
    named = (*LENGTHS, *TIMES, *COUNTS)
    table = read_table(path, named, (*NOT_SERVED, "session", "priority"), (*RESULTS, "engine"))
    served, num_left_out = _served(table)
    if not served[TIMES[0]]:
        raise InputError(
            key=path, problem="no request was served", remedy="give a run that serves requests"
        )
    prompts, outputs = (read_numbers(path, name, served[name], TOKENS) for name in LENGTHS)
    num_seqs, *preempted = (read_numbers(path, name, served[name], COUNT) for name in COUNTS)
    require(path, COUNTS[0], served[COUNTS[0]], num_seqs == 1, "1: a log has single sequences")
    times = np.stack([read_numbers(path, name, served[name], SECONDS) for name in TIMES], axis=1)
    in_order = np.diff(times, axis=1).min(axis=1) >= 0
    require(path, TIMES[1], served[TIMES[1]], in_order, f"in order ({', '.join(TIMES)})")
    remarks = [f"{num_left_out} requests were not served: left out"] if num_left_out else []
    return RunLog(Rows(prompts, outputs), times, int(sum(map(np.sum, preempted))), remarks)


def _served(table: Mapping[str, Sequence[str]]) -> tuple[dict[str, list[str]], int]:
    """The columns without the rows of rejected or cancelled requests, and the number of these."""
    marks = [table[name] for name in NOT_SERVED if name in table]
    rows = zip(table[TIMES[0]], *marks, strict=True)
    is_served = [not any(of_row[1:]) for of_row in rows]
    kept = {name: list(compress(texts, is_served)) for name, texts in table.items()}
    return kept, is_served.count(False)
