"""Verdicts of a plan on candidates, as values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from testbed.core.errors import InputError
from testbed.experiments.plan.jobs import Failure, Outcome, Searched
from testbed.experiments.plan.space import Candidate, Deployment
from testbed.run.metrics import WHILE_ARRIVING
from testbed.run.while_arriving import COMPLETED, LAST_ARRIVAL
from testbed.study.capacity_search import filling_share
from testbed.study.replications import Interval, interval, within_step

REFUSED = "refused"
MILLION, HOUR_S = 1e6, 3600


def per_million(hourly: float, rate: float) -> float:
    """The cost of a million requests that are served at a rate in requests/s."""
    return hourly / (rate * HOUR_S) * MILLION


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
    """A candidate that is not simulated. limit: the check that removed it, or a limit of `bounds`;
    reason: why.

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
    """Keeps the SLO. outcomes: of each seed, the run at the rate that is served; rates: these
    rates, in requests/s. others: further runs, which keep the SLO too.
    precision: of the search that found the rates; 0: they are given.
    """

    candidate: Candidate
    hourly: float
    outcomes: tuple[Outcome, ...]
    rates: tuple[float, ...]
    limit: str
    others: tuple[Outcome, ...] = ()
    precision: float = 0.0

    @property
    def rate(self) -> Interval:
        """The mean rate, with its interval and the step of the search."""
        return within_step(interval(self.rates), self.precision * max(self.rates))

    @property
    def cost(self) -> Interval:
        """The cost of a million requests at the mean rate, in the plan's unit; its interval is, to
        first order, as large a part of it as the rate's.
        """
        rate = self.rate
        mean = per_million(self.hourly, rate.mean)
        half_width = None if rate.half_width is None else rate.half_width / rate.mean * mean
        return Interval(mean, half_width, rate.num_values)

    @property
    def costs(self) -> list[float]:
        """The cost of a million requests with each seed."""
        return [per_million(self.hourly, rate) for rate in self.rates]

    @property
    def filling(self) -> float:
        """The largest share of the arrivals in which the server, empty at first, filled."""
        pairs = zip(self.outcomes, self.rates, strict=True)
        return max(filling_share(outcome.summary, rate) for outcome, rate in pairs)

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
