"""The limits of a candidate in its runs."""

from collections.abc import Mapping, Sequence
from typing import Any

from testbed.experiments.plan.bounds import DECODE, LINK, MEMORY, PREFILL
from testbed.experiments.plan.jobs import Outcome
from testbed.experiments.plan.question import Question

# The work that decides each objective
WORK = {"ttft_s": PREFILL, "tpot_s": DECODE, "itl_s": DECODE, "e2e_s": DECODE}
# The numbers of a summary that an objective limits for each request, and what they are called
LIMITED = {"itl_s": "itl_max_s"}
LABELS = {"ttft_s": "TTFT", "tpot_s": "TPOT", "itl_s": "longest gap", "e2e_s": "end to end"}
MANY_PREEMPTIONS = 0.01  # for each request
FULL = 0.9  # of the pool, over time


def limit_of(outcome: Outcome, loads: Mapping[str, float], question: Question) -> str:
    """The limit of a run.

    MEMORY if requests are preempted or the pool is full; LINK if of all engines' resources
    the hand-overs' link is the busiest by `loads` (`Bounds.loads`); else PREFILL or DECODE, by the
    objective that is nearer to its limit or farther beyond.
    """
    summary = outcome.summary
    preempted = sum(summary["preemptions"].values()) / max(summary["requests"]["arrived"], 1)
    if preempted > MANY_PREEMPTIONS or _occupied(summary) > FULL:
        return MEMORY
    if loads.get(LINK) and max(loads, key=lambda name: loads[name]) == LINK:
        return LINK
    return max(strains(outcome, question), key=lambda strain: strain[1])[0]


def strains(outcome: Outcome, question: Question) -> list[tuple[str, float]]:
    """The ratio of the requests' percentile of each objective to its limit, by the work
    that decides it.
    """
    return [
        (WORK[name], (_percentile(outcome, name, question) or 0.0) / limit_s)
        for name, limit_s in question.objectives.items()
    ]


def broken(outcomes: Sequence[Outcome], question: Question) -> str:
    """The objectives that are missed, and by how much, on average over the runs."""
    texts = []
    for name, limit_s in question.objectives.items():
        values = [_percentile(outcome, name, question) for outcome in outcomes]
        of_answered = [value for value in values if value is not None]
        shown = f"{sum(of_answered) / len(of_answered):.3g} s" if of_answered else "none"
        texts.append(f"{LABELS[name]} {question.percentile} is {shown} of {limit_s:g} s")
    rejected = sum(outcome.summary["requests"]["rejected"] for outcome in outcomes)
    return ", ".join([*texts, *([f"{rejected:,} requests are rejected"] if rejected else [])])


def _percentile(outcome: Outcome, name: str, question: Question) -> float | None:
    """The most that the question's share of the requests has, in s; None if none was answered."""
    value: float | None = outcome.summary[LIMITED.get(name, name)][question.percentile]
    return value


def _occupied(summary: Mapping[str, Any]) -> float:
    """The share of the pool that requests hold, over time."""
    free = summary["memory_free"]
    unused = [free[name]["over_time"] or 0.0 for name in ("free", "cached")]
    return 1 - sum(unused) if free["free"]["over_time"] is not None else 0.0
