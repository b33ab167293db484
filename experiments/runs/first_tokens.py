"""Remarks on the time to the first token of a sweep's setting, beside the table's percentiles of
the whole run, in which a server fills and drains.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from testbed.run.metrics import WHILE_ARRIVING
from testbed.run.while_arriving import TTFT_P50, TTFT_P99

UNLIKE = 0.25  # of the whole run's median, by which the second half's differs
Summaries = Sequence[Mapping[str, Any]]


def remarks_on_first_tokens(summaries: Summaries) -> list[str]:
    """The second half's percentiles if its median is another than the whole run's, and that
    requests wait for most of their latency; of the means over the summaries.
    """
    return [*_unlike_half(summaries), *_long_waits(summaries)]


def _unlike_half(summaries: Summaries) -> list[str]:
    halves = [summary.get(WHILE_ARRIVING) or {} for summary in summaries]
    wholes = [summary.get("ttft_s") or {} for summary in summaries]
    median, slow = _mean(halves, TTFT_P50), _mean(halves, TTFT_P99)
    of_run, slow_of_run = _mean(wholes, "p50"), _mean(wholes, "p99")
    if median is None or slow is None or of_run is None or slow_of_run is None:
        return []
    if abs(median - of_run) <= UNLIKE * of_run:
        return []
    return [
        f"TTFT p50 {median:.3g} s, p99 {slow:.3g} s in the second half of the arrivals; in the "
        f"whole run, as in the table, {of_run:.3g} and {slow_of_run:.3g} s"
    ]


def _long_waits(summaries: Summaries) -> list[str]:
    """The remark on a server of which more requests wait than generate, on average (Little). Of
    answers of one token the first is all of the latency.
    """
    wait, latency, later = (
        _mean([summary.get(name) or {} for summary in summaries], "mean")
        for name in ("ttft_s", "e2e_s", "tpot_s")
    )
    if wait is None or latency is None or not later or wait <= latency / 2:
        return []
    return [
        f"more requests wait for their first token than generate: {wait:.3g} of {latency:.3g} s of "
        "a latency (the means); if prompts are short, the server is overloaded (less load, or more "
        "GPUs)"
    ]


def _mean(values: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """The mean of the values of a key; None if one of them lacks it."""
    found = [of.get(key) for of in values]
    known = [value for value in found if value is not None]
    return fmean(known) if known and len(known) == len(found) else None
