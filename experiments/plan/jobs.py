"""The simulations of a plan: one run, or the rate search of `testbed capacity`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.core.errors import InputError
from testbed.experiments.cli.working_folder import enter
from testbed.experiments.runs.error_lines import as_refusal
from testbed.run.result import front_end
from testbed.run.summaries import ID, RUN
from testbed.study.capacity_search import CapacitySearch
from testbed.study.knee import NoRate

SUMMARIES = {"outputs": "summary"}


@dataclass(frozen=True)
class Outcome:
    """A finished run. rate: requests/s, None if the words say when requests arrive."""

    rate: float | None
    seed: int
    share_inside: float
    summary: dict[str, Any]

    @property
    def run_id(self) -> str:
        """The name of its folder."""
        return str(self.summary[RUN][ID])


@dataclass(frozen=True)
class Place:
    """The place in which runs are simulated: the folder of their folders, and that in which the
    user is.
    """

    runs: Path
    working_folder: Path


@dataclass(frozen=True)
class RunJob:
    """One run of a deployment; gives its Outcome."""

    words: tuple[str, ...]
    seed: int
    rate: float | None
    place: Place

    def __call__(self) -> "Outcome | Failure":
        try:
            return self.simulated()
        except (Exception, SystemExit) as error:  # not every error can leave a launcher's process
            return Failure(as_refusal(error), is_answer=False)

    def simulated(self) -> Outcome:
        """The run; raises InputError if none can be made of it."""
        enter(str(self.place.working_folder), self.words)
        rate = {} if self.rate is None else {"rate": self.rate}
        config = front_end().configure(self.words, {**SUMMARIES, "seed": self.seed, **rate})
        return outcome_of(front_end().measure(config, self.place.runs), self.rate, self.seed)


def outcome_of(summary: dict[str, Any], rate: float | None, seed: int) -> Outcome:
    """The outcome of a run with this summary. Raises InputError if it has no request."""
    inside = summary["slo"]["share_inside"]
    if inside is None:
        raise InputError(
            key="arrivals",
            problem="no request arrives",
            remedy="give more of them, by arrivals.rate or arrivals.duration_s",
        )
    return Outcome(rate, seed, inside, summary)


@dataclass(frozen=True)
class Failure:
    """The refusal of a job that gave no result. is_answer: it says something of the deployment, as
    a search without an end does; else the job has failed, and so has its plan. rates: of its runs,
    if it was a search.
    """

    error: InputError
    is_answer: bool
    rates: tuple[float, ...] = ()


@dataclass(frozen=True)
class Searched:
    """A rate search. highest: the run at the highest rate that keeps the SLO, None if none does;
    missed: that at the lowest rate above it, or else the nearest; kept: those at rates that keep
    it. rates: all that were simulated.
    """

    seed: int
    highest: Outcome | None
    missed: Outcome | None
    kept: tuple[Outcome, ...]
    rates: tuple[float, ...]


@dataclass(frozen=True)
class SearchJob:
    """The highest rate of a deployment that keeps the SLO, by the search of `testbed.capacity`."""

    words: tuple[str, ...]
    seed: int
    share: float
    low: float
    high: float
    precision: float
    place: Place

    def __call__(self) -> "Searched | Failure":
        tried = dict[float, float]()
        try:
            return self.searched(tried)
        except (Exception, SystemExit) as error:  # not every error can leave a launcher's process
            return Failure(as_refusal(error), isinstance(error, NoRate), tuple(sorted(tried)))

    def searched(self, tried: dict[float, float]) -> Searched:
        """The search, which adds the share inside at each rate to `tried`; raises InputError if
        every rate keeps the SLO, or a run cannot be made.
        """
        enter(str(self.place.working_folder), self.words)
        search = CapacitySearch(self.words, {"seed": self.seed}, self.place.runs, tried.__setitem__)
        highest = self._highest(search, tried)
        missed = self._missed(tried, highest)

        def outcome_at(rate: float) -> Outcome:
            return outcome_of(search.summaries[rate], rate, self.seed)

        return Searched(
            seed=self.seed,
            highest=None if highest is None else outcome_at(highest),
            missed=None if missed is None else outcome_at(missed),
            kept=tuple(outcome_at(rate) for rate in sorted(tried) if tried[rate] >= self.share),
            rates=tuple(sorted(tried)),
        )

    def _missed(self, tried: dict[float, float], highest: float | None) -> float | None:
        """The lowest rate above the highest one that keeps the SLO; if none does, that at which
        most requests do.
        """
        if highest is None:
            return max(tried, key=lambda rate: tried[rate])
        above = [rate for rate in tried if rate > highest and tried[rate] < self.share]
        return min(above, default=None)

    def _highest(self, search: CapacitySearch, tried: dict[float, float]) -> float | None:
        """The answer of the search, which adds the share inside at each rate to `tried`; None if
        every rate that was tried misses the SLO.
        """
        try:
            return search.highest(self.share, self.low, self.high, self.precision).rate
        except NoRate:
            if not tried or max(tried.values()) >= self.share:
                raise
            return None
