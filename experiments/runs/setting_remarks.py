"""Remarks on the settings of a sweep: what to know of each before its numbers."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from testbed.experiments.runs.quantities import still_filling
from testbed.run.metrics import WHILE_ARRIVING, in_words
from testbed.run.simulate import OVERLOAD
from testbed.run.while_arriving import TTFT_P50, TTFT_P99, is_filling

MOST_REMARKS = 8
UNLIKE = 0.25  # of the whole run's median TTFT, by which the second half's differs
Runs = Sequence[Mapping[str, Any]]  # the summaries of a setting's seeds


def remarks(of_setting: Callable[[Runs], Iterable[str]], runs: Mapping[str, Runs]) -> list[str]:
    """The remarks on each setting behind its name, if it has one; of many the first ones."""
    return first_ones(
        [
            f"{name}: {remark}".removeprefix(": ")
            for name, summaries in runs.items()
            for remark in of_setting(summaries)
        ]
    )


def first_ones(lines: list[str]) -> list[str]:
    """The first remarks of many."""
    others = len(lines) - MOST_REMARKS
    return lines if others <= 0 else [*lines[:MOST_REMARKS], f"and {others} points more"]


def overloads(summaries: Runs) -> Iterator[str]:
    """A remark if the server does not keep up with the arrivals, on how many seeds."""
    behind = [of for summary in summaries if (of := summary.get(OVERLOAD))]
    if behind:
        on = f" on {len(behind)} of {len(summaries)} seeds" if len(summaries) > 1 else ""
        yield (
            f"overloaded{on}, so that latencies grow with arrivals.duration_s: "
            f"{in_words(behind[0])}"
        )


def rejections(summaries: Runs) -> Iterator[str]:
    """A remark on each run with rejected requests."""
    for counts in (summary["requests"] for summary in summaries):
        if counts.get("rejected"):
            yield (
                f"{counts['rejected']} of {counts['arrived']} requests rejected, which latencies "
                "leave out"
            )


def fillings(summaries: Runs) -> Iterator[str]:
    """A remark if the server still fills in the second half of the first run's arrivals, and does
    not fall behind.
    """
    part = summaries[0].get(WHILE_ARRIVING)
    if part and is_filling(part) and not summaries[0].get(OVERLOAD):
        yield still_filling(part)


def waits(summaries: Runs) -> list[str]:
    """The remarks on first tokens, unless the server falls behind."""
    is_behind = any(summary.get(OVERLOAD) for summary in summaries)
    return [] if is_behind else remarks_on_first_tokens(summaries)


def remarks_on_first_tokens(summaries: Runs) -> list[str]:
    """The second half's percentiles if its median is another than the whole run's, and that
    requests wait for most of their latency; of the means over the summaries.
    """
    return [*_unlike_half(summaries), *_long_waits(summaries)]


def _unlike_half(summaries: Runs) -> list[str]:
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


def _long_waits(summaries: Runs) -> list[str]:
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
