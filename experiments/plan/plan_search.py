"""Parts that both searches of a plan use: the question, arithmetic, simulations and prices."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from testbed.experiments.plan.arithmetic import Arithmetic
from testbed.experiments.plan.prices import Rate
from testbed.experiments.plan.question import Question
from testbed.experiments.plan.simulations import Simulations
from testbed.experiments.plan.space import Candidate

Result = TypeVar("Result")


@dataclass(frozen=True)
class Search:
    """report: is called at each round."""

    question: Question
    arithmetic: Arithmetic
    simulations: Simulations
    prices: Rate
    report: Callable[[str], None]

    def by_candidate(self, results: Sequence[Result]) -> list[Sequence[Result]]:
        """The results of candidates with each seed, in parts: those of each candidate."""
        size = len(self.question.seeds)
        return [results[start : start + size] for start in range(0, len(results), size)]

    def hourly(self, candidate: Candidate) -> float:
        """The cost of an hour of the candidate."""
        return self.prices.hourly(candidate)
