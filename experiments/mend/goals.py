"""The goals by which `testbed mend` judges a change: a number of a run, and which way is better."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from testbed.core.errors import InputError
from testbed.run.metrics import WHILE_ARRIVING
from testbed.run.while_arriving import COMPLETED, LAST_ARRIVAL

Summary = Mapping[str, Any]
PREEMPTIONS, LATENCY = "preemptions/h", "latency, s"
GOODPUT, INSIDE = "goodput, req/s", "inside SLO, %"
COMPLETED_RATE = "req/s, 2nd half"


def arrivals_s(summary: Summary) -> float:
    """The seconds in which requests arrive, without the drain, which preempts less; those of the
    whole run if all arrive at once.
    """
    window = summary.get(WHILE_ARRIVING)
    return float(summary["simulated_s"] if window is None else window[LAST_ARRIVAL])


NUMBERS: dict[str, Callable[[Summary], float | None]] = {
    PREEMPTIONS: lambda of: 3600 * sum(of["preemptions"].values()) / arrivals_s(of),
    INSIDE: lambda of: _percent(_of_slo(of, "share_inside")),
    GOODPUT: lambda of: _of_slo(of, "goodput_requests_per_s"),
    "TTFT p99, s": lambda of: of["ttft_s"]["p99"],
    "TPOT p99, s": lambda of: of["tpot_s"]["p99"],
    LATENCY: lambda of: of["e2e_s"]["mean"],
    COMPLETED_RATE: lambda of: (of[WHILE_ARRIVING] or {}).get(COMPLETED),
}


MORE_IS_BETTER = (INSIDE, GOODPUT, COMPLETED_RATE)


def loss_of(number: str, difference: float) -> float:
    """The difference of one of NUMBERS, above 0 if it is worse."""
    return -difference if number in MORE_IS_BETTER else difference


@dataclass(frozen=True)
class Goal:
    """name: as --by takes it. number: of NUMBERS."""

    name: str
    number: str


GOALS = {
    goal.name: goal
    for goal in (
        Goal("latency", LATENCY),
        Goal("goodput", GOODPUT),
        Goal("share", INSIDE),
        Goal("preemptions", PREEMPTIONS),
    )
}
OF_SLO = (GOALS["goodput"], GOALS["share"])


def goal_of(name: str | None, *, has_slo: bool) -> Goal:
    """The goal of a name; without one goodput if there is an SLO, else mean latency. Raises
    InputError for another name, and for a goal that needs an SLO if there is none.
    """
    if name is None:
        return GOALS["goodput" if has_slo else "latency"]
    if name not in GOALS:
        raise InputError(
            key="--by", value=name, problem="is no goal", remedy=f"choose from {', '.join(GOALS)}"
        )
    goal = GOALS[name]
    if goal in OF_SLO and not has_slo:
        raise InputError(
            key="--by", value=name, problem="needs an SLO", remedy="slo.ttft_s=S or slo.tpot_s=S"
        )
    return goal


def _of_slo(summary: Summary, name: str) -> float | None:
    value = (summary.get("slo") or {}).get(name)
    return None if value is None else float(value)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
