"""The requests of a benchmark client as rows and times."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from testbed.core.errors import InputError
from testbed.core.request import Rows
from testbed.traces.files import wrong_count, wrong_time
from testbed.traces.length_model import Floats
from testbed.traces.reader import columns


def checked_rows(
    path: str, items: Sequence[Mapping[str, Any]], num_lost: int, remarks: list[str]
) -> tuple[Rows, Floats, list[str]]:
    """The items as rows and times, with remarks; raises InputError for a wrong item."""
    for number, item in enumerate(items, start=1):
        times = dict(zip(("sent", "first token", "last token"), item["times_s"], strict=True))
        wrong = wrong_count(item, "prompt") or wrong_count(item, "output")
        wrong = wrong or next(filter(None, (wrong_time(times, name) for name in times)), None)
        if wrong or sorted(item["times_s"]) != item["times_s"]:
            raise InputError(
                key=f"{path}, request {number}",
                problem=wrong or "its times are not in order",
                remedy="mend or remove it",
            )
    if not items:
        raise InputError(
            key=path,
            problem="no request was served",
            remedy="give the file of a run that went well",
        )
    if num_lost:
        remarks.append(
            f"{num_lost} of {num_lost + len(items)} requests failed: left out, as if they took no "
            "time"
        )
    rows = Rows(*columns([(item["prompt"], item["output"]) for item in items]))
    return rows, np.array([item["times_s"] for item in items], dtype=np.float64), remarks
