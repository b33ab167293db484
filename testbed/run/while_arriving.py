"""Rates and hits of a run in the second half of the time in which requests arrive: behind the
filling of a server that begins empty, before the drain.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from testbed.core.request import PS, Column
from testbed.engine.packed_rows import PackedRows
from testbed.run.percentiles import percentiles

COMPLETED, GOODPUT = "completed_requests_per_s", "goodput_requests_per_s"
ARRIVED, LAST_ARRIVAL = "arrived_requests_per_s", "last_arrival_s"
LONGER = "share_longer_than_first_half"
TTFT_P50, TTFT_P99 = "ttft_p50_s", "ttft_p99_s"
FEW = 0.05  # of the answers; more take part in the filling still


def while_arriving(
    log: PackedRows,
    num_arrived: int,
    inside: NDArray[np.bool_] | None = None,
    sessions: Column | None = None,
) -> dict[str, float | None] | None:
    """The window and the last arrival in s, the requests that arrive and that complete in the
    window and the output tokens of these, per second; of its arrivals that were admitted the
    share of the prompt tokens that were found in a cache (None: contents unknown), and the median
    and the 99th percentile of the time to the first token (None: none was answered); the share of
    all answers that took longer than the first half.

    num_arrived: of the whole run. inside: True for each request in the log that met the objectives;
    with it the rate of these too. sessions: that of each request by its id, if requests wait for
    the answers of theirs; the time ends if fewer are open than before. None: all requests arrive at
    once, or the run was stopped.
    """
    columns = log.columns()
    arrival_ps, finish_ps = columns["arrival_ps"], columns["finish_ps"]
    if not len(arrival_ps) or len(arrival_ps) < num_arrived:
        return None
    to_ps = int(arrival_ps.max()) if sessions is None else _open_until_ps(columns, sessions)
    if not to_ps:
        return None
    from_ps = to_ps // 2
    came = (arrival_ps > from_ps) & (arrival_ps <= to_ps)
    served = came & (finish_ps >= 0)
    # Not one that was rejected, or cancelled before its prompt was looked up
    admitted = served | (came & (columns["hit_tokens"] >= 0))
    done = (finish_ps > from_ps) & (finish_ps <= to_ps)
    seconds = (to_ps - from_ps) / PS
    output_tokens = (columns["output_len"] * columns["num_seqs"])[done].sum()
    return {
        "from_s": from_ps / PS,
        "to_s": to_ps / PS,
        LAST_ARRIVAL: int(arrival_ps.max()) / PS,
        ARRIVED: int(came.sum()) / seconds,
        COMPLETED: int(done.sum()) / seconds,
        "completed_output_tokens_per_s": int(output_tokens) / seconds,
        GOODPUT: None if inside is None else int((done & inside).sum()) / seconds,
        "prompt_found": _found(columns["prompt_len"][admitted], columns["hit_tokens"][admitted]),
        **_ttft_s(columns, served),
        LONGER: _share_longer(columns, from_ps),
    }


def is_filling(rates: Mapping[str, float | None] | None) -> bool:
    """True if many requests take longer than the first half: the server still fills in the second
    one, or falls behind, so that its rates are not steady.
    """
    return rates is not None and (rates[LONGER] or 0.0) > FEW


def _open_until_ps(columns: Mapping[str, Column], sessions: Column) -> int:
    """The time until which as many sessions are open as ever: the last one's start, or the first
    one's end if that is later.
    """
    names, session = np.unique(sessions[columns["request_id"]], return_inverse=True)
    starts = np.full(len(names), np.iinfo(np.int64).max)
    np.minimum.at(starts, session, columns["arrival_ps"])
    ends = np.zeros(len(names), np.int64)  # of a session whose requests are all rejected too
    np.maximum.at(ends, session, columns["finish_ps"])
    return int(max(starts.max(), ends.min()))


def _ttft_s(columns: Mapping[str, Column], which: NDArray[np.bool_]) -> dict[str, float | None]:
    """The median and the 99th percentile of these requests' time to the first token."""
    waited_ps = (columns["first_token_ps"] - columns["arrival_ps"])[which]
    if not len(waited_ps):
        return {TTFT_P50: None, TTFT_P99: None}
    median_ps, slow_ps = percentiles(waited_ps, (50, 99))
    return {TTFT_P50: median_ps / PS, TTFT_P99: slow_ps / PS}


def _share_longer(columns: Mapping[str, Column], first_half_ps: int) -> float:
    """The share of the answers that took longer than the first half; 0 without an answer."""
    answered = columns["finish_ps"] >= 0
    latency_ps = (columns["finish_ps"] - columns["arrival_ps"])[answered]
    return float((latency_ps > first_half_ps).mean()) if len(latency_ps) else 0.0


def _found(prompt_len: Column, hit_tokens: Column) -> float | None:
    """The share of these prompts' tokens that was found; None if a request does not say."""
    if not len(prompt_len) or hit_tokens.min() < 0:
        return None
    return int(hit_tokens.sum()) / int(prompt_len.sum())
