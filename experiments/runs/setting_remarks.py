"""Remarks on the settings of a sweep: what to know of each before its numbers."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from testbed.experiments.runs.first_tokens import remarks_on_first_tokens
from testbed.experiments.runs.quantities import still_filling
from testbed.run.metrics import WHILE_ARRIVING, in_words
from testbed.run.simulate import OVERLOAD
from testbed.run.while_arriving import is_filling

MOST_REMARKS = 8
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
