"""The simulations of a plan, sent to the launcher and counted: each run once, those of rate
searches included.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.experiments.plan.jobs import Failure, Outcome, Place, RunJob, Searched, SearchJob
from testbed.experiments.plan.question import Question
from testbed.experiments.plan.space import Candidate
from testbed.experiments.runs.launchers import launched

SPREAD = 2.0  # between the first two rates of a search


@dataclass
class Simulations:
    """Simulates for a question; launcher: the words that choose the launcher.

    A run that is complete in the folder is read there, and counts like one that is simulated: the
    count says what the plan needs.
    """

    question: Question
    runs: Path
    launcher: tuple[str, ...] = ()
    counted: set[tuple[tuple[str, ...], int, float | None]] = field(default_factory=set)

    @property
    def count(self) -> int:
        """Different runs so far."""
        return len(self.counted)

    def outcomes(
        self, wanted: Sequence[tuple[Candidate, int, float | None]]
    ) -> list[Outcome | Failure]:
        """The runs of candidates with a seed, at a rate or, with None, as the words say."""
        jobs = [
            RunJob(candidate.deployment.words, seed, rate, self._place)
            for candidate, seed, rate in wanted
        ]
        return self._launched(jobs, [candidate for candidate, *_ in wanted])

    def searches(self, wanted: Sequence[tuple[Candidate, int, float]]) -> list[Searched | Failure]:
        """The rate searches of candidates with a seed, around a guess in requests/s."""
        question = self.question
        jobs = [
            SearchJob(
                words=candidate.deployment.words,
                seed=seed,
                share=question.share,
                low=guess / SPREAD,
                high=guess,
                precision=question.precision,
                place=self._place,
            )
            for candidate, seed, guess in wanted
        ]
        return self._launched(jobs, [candidate for candidate, *_ in wanted])

    @property
    def _place(self) -> Place:
        return Place(self.runs.absolute(), Path.cwd())

    def _launched(
        self, jobs: Sequence[RunJob | SearchJob], candidates: Sequence[Candidate]
    ) -> list[Any]:
        """The results of the jobs; raises InputError if one has failed: a plan without it would
        rank the others as if it missed the SLO.
        """
        if not jobs:
            return []
        results = []
        for job, result in zip(jobs, launched(self.launcher, jobs, self._place.runs), strict=True):
            rates = (job.rate,) if isinstance(job, RunJob) else result.rates
            self.counted |= {(job.words, job.seed, rate) for rate in rates}
            results.append(result)
        for candidate, result in zip(candidates, results, strict=True):
            if isinstance(result, Failure) and not result.is_answer:
                raise result.error.within(candidate.deployment.name)
        return results
