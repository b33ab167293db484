"""Verdicts of a plan on candidates, as values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from testbed.core.errors import InputError
from testbed.experiments.plan.jobs import Failure, Outcome, Searched
from testbed.experiments.plan.space import Candidate, Deployment
from testbed.run.metrics import WHILE_ARRIVING
from testbed.run.while_arriving import COMPLETED, LAST_ARRIVAL
from testbed.study.replications import Interval, interval, within_step

REFUSED = "refused"


def rate_of(candidate: Candidate, outcome: Outcome) -> float:
    """Requests/s that arrive in a run; of a trace its answered requests over the time in which they
    arrive, of a closed loop and of clients that wait for answers (max_in_flight) those that
    complete in the second half of the arrivals. If all arrive at once, the drain is part of the
    time.
    """
    arrivals, summary = candidate.config.arrivals, outcome.summary
    waits = arrivals.parameters.get("max_in_flight")
    configured = None if waits else arrivals.parameters.get("rate")
    answered = summary["throughput"]["requests_per_s"]
    if window := summary.get(WHILE_ARRIVING):
        of_trace = summary["requests"]["finished"] / window[LAST_ARRIVAL]
        replays = getattr(arrivals.maker("arrivals"), "replays", False)
        answered = of_trace if replays else window[COMPLETED]
    return float(outcome.rate or configured or answered or 0.0)


@dataclass(frozen=True)
class Pruned:
    """Not simulated. limit: the check that removed it, or a limit of `bounds`; reason: why.

    error: the refusal of a deployment that cannot be built or simulated.
    """

    deployment: Deployment
    limit: str
    reason: str
    error: InputError | None = None

    @classmethod
    def by(cls, error: InputError, deployment: Deployment, limit: str) -> Self:
        """A deployment that this refusal removes."""
        return cls(deployment, limit, str(error), error)


@dataclass(frozen=True)
class Keeps:
    """Keeps the SLO. outcomes: of each seed, the run at the rate that is served. costs: of a
    million requests, by seed, in the plan's unit. others: further runs, which keep the SLO too.
    precision: of the search that found the rates; 0: they are given.
    """

    candidate: Candidate
    hourly: float
    outcomes: tuple[Outcome, ...]
    costs: tuple[float, ...]
    limit: str
    others: tuple[Outcome, ...] = ()
    precision: float = 0.0

    @property
    def cost(self) -> Interval:
        """The cost of a million requests; equal costs have no more than the step of the search."""
        if len(set(self.costs)) == 1 < len(self.costs):
            return Interval(self.costs[0], self.step, len(self.costs))
        return within_step(interval(self.costs), self.step)

    @property
    def step(self) -> float:
        """The precision of a cost, by the step of the search for its rate."""
        return self.precision * max(self.costs)

    @property
    def inside(self) -> Interval:
        """The share of requests that keep the SLO."""
        return interval([outcome.share_inside for outcome in self.outcomes])


@dataclass(frozen=True)
class Dearer:
    """Misses the SLO, with each seed, at the rate at which it would cost as much as another."""

    candidate: Candidate
    hourly: float
    outcomes: tuple[Outcome, ...]
    limit: str

    @property
    def reason(self) -> str:
        """The rates that it misses."""
        rates = [outcome.rate for outcome in self.outcomes if outcome.rate is not None]
        return f"serves less than {min(rates):.3g} req/s, so another one is cheaper"


@dataclass(frozen=True)
class Misses:
    """Misses the SLO with the requests that are given, or at every rate. what: by how much."""

    candidate: Candidate
    hourly: float
    outcomes: tuple[Outcome, ...]
    limit: str
    what: str

    @property
    def inside(self) -> Interval:
        """The share of requests that keep the SLO, of seeds that were simulated."""
        return interval([outcome.share_inside for outcome in self.outcomes])


def refused(
    candidate: Candidate, results: Sequence[Outcome | Failure] | Sequence[Searched | Failure]
) -> Pruned | None:
    """The verdict by the first job that gave no result; None if every one did."""
    for result in results:
        if isinstance(result, Failure):
            return Pruned.by(result.error, candidate.deployment, REFUSED)
    return None


def check_one_reason(pruned: Sequence[Pruned]) -> None:
    """Raise the refusal of all of them if it is one: an error of the words."""
    errors = {ruled_out.reason: ruled_out.error for ruled_out in pruned}
    error = next(iter(errors.values()), None)
    if len(errors) == 1 and error is not None:
        raise error


Verdict = Pruned | Keeps | Dearer | Misses
Simulated = Keeps | Dearer | Misses
