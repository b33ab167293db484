"""A recorder's columns as data frames, in seconds."""

import pandas as pd

from testbed.core.request import PS
from testbed.sim.recorder import NOT_YET, Recorder


def requests(recorder: Recorder) -> pd.DataFrame:
    """One row a request that has ended, in order of arrival; a rejected one has a reason and no times."""
    table = in_seconds(pd.DataFrame(recorder.requests.columns()))
    table["rejected"] = [recorder.rejections.get(request_id, "") for request_id in table["request_id"]]
    return table.sort_values("request_id", ignore_index=True)


def spans(recorder: Recorder) -> pd.DataFrame:
    """One row a span of identical iterations, in order of time; slots are means over its iterations."""
    return in_seconds(pd.DataFrame(recorder.spans.columns()))


def in_seconds(table: pd.DataFrame) -> pd.DataFrame:
    """Columns that end in _ps become columns that end in _s; what has not happened becomes missing."""
    for name in [name for name in table.columns if name.endswith("_ps")]:
        table[name] = table[name].where(table[name] != NOT_YET) / PS
    return table.rename(columns=lambda name: f"{name[:-3]}_s" if name.endswith("_ps") else name)
