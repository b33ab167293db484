"""Bounds of candidates at a rate and with a seed, from the requests of just that run."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from testbed.experiments.plan.bounds import Bounds, Reason
from testbed.experiments.plan.demand import Demand, demand_of
from testbed.experiments.plan.question import Question
from testbed.experiments.plan.space import Candidate
from testbed.experiments.plan.time_bounds import Machine
from testbed.run.config import RunConfig

MARGIN = 3.0  # standard errors of a share
ENOUGH, HIGHEST = 100, 1e4  # requests that show their mean lengths; requests/s


@dataclass
class Arithmetic:
    """Computes bounds; keeps the lengths of requests, which many bounds share."""

    question: Question
    demands: dict[str, Demand] = field(default_factory=dict)

    def bounds(self, candidate: Candidate, seed: int, rate: float | None) -> Bounds:
        """With the requests of a seed, at a rate or, with None, as the words say."""
        demand = self._demand(_at(candidate.config, seed, rate))
        return Bounds(_machine_of(candidate), demand, self.question.slo, self.question.share)

    def reason(
        self, candidate: Candidate, rates: Sequence[tuple[int, float | None]]
    ) -> Reason | None:
        """The reason why the SLO is missed with every one of these seeds and rates; None if it is
        not certain.
        """
        reasons = [self.bounds(candidate, seed, rate).reason() for seed, rate in rates]
        return None if None in reasons else reasons[0]

    def too_slow(self, candidate: Candidate) -> Reason | None:
        """The reason why the SLO is missed at every rate; None if it is not certain: an idle engine
        could serve too few requests in time, by more than MARGIN standard errors.

        Assumption: the requests of other rates have lengths of the same distribution.
        """
        for seed in self.question.seeds:
            reason = self.bounds(candidate, seed, rate=None).too_slow(MARGIN)
            if reason is None:
                return None
        return reason

    def highest_rate(self, candidate: Candidate) -> float:
        """About the rate in requests/s above which the candidate is too slow if no prompt is found
        in a cache: a first guess for searches, and their order.

        Without deadlines for work it is a request/s for each GPU.
        """
        seed, rate = self.question.seeds[0], 1.0
        while len(self.bounds(candidate, seed, rate).demand) < ENOUGH and rate < HIGHEST:
            rate *= 2
        bounds = self.bounds(candidate, seed, rate)
        demand = replace(bounds.demand, own_len=bounds.demand.prompt_len)
        busiest = max(replace(bounds, demand=demand).loads.values(), default=0.0)
        return rate / busiest if busiest > 0 else float(candidate.num_gpus)

    def _demand(self, config: RunConfig) -> Demand:
        key = repr((config.trace, config.arrivals, config.workload, config.seed))
        if key not in self.demands:
            self.demands[key] = demand_of(config)
        return self.demands[key]


@lru_cache(maxsize=16)
def _machine_of(candidate: Candidate) -> Machine:
    """The machine of a candidate; few are kept, because each has tables of measured times."""
    return Machine(candidate.config)


def _at(config: RunConfig, seed: int, rate: float | None) -> RunConfig:
    if rate is None:
        return replace(config, seed=seed)
    return replace(config, seed=seed, arrivals=config.arrivals.updated(rate=rate))
