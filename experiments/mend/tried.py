"""A change of a server, and its runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from testbed.experiments.mend.goals import COMPLETED_RATE, NUMBERS, arrivals_s
from testbed.experiments.mend.server_changes import Change
from testbed.run.metrics import WHILE_ARRIVING
from testbed.run.simulate import OVERLOAD
from testbed.run.summaries import RUN
from testbed.run.while_arriving import is_filling
from testbed.study.capacity_search import filling_share
from testbed.study.replications import Interval, interval

AT_LIMIT = 0.75  # of the limit of sequences, on average over a run that falls behind at it


@dataclass(frozen=True)
class Tried:
    """A change and its runs, one for each seed, in order."""

    change: Change
    summaries: Sequence[Mapping[str, Any]]

    def mean(self, name: str) -> Interval | None:
        """A number over the seeds; None if a seed has none."""
        values = self._values(name)
        return None if values is None else interval(values)

    def less(self, name: str, reference: "Tried") -> Interval | None:
        """The difference from the reference, seed by seed; None if a seed has none."""
        differences = self.differences(name, reference)
        return None if differences is None else interval(differences)

    def differences(self, name: str, reference: "Tried") -> list[float] | None:
        """The difference from the reference with each seed; None if a seed has none, and of
        completions while arriving if a server still fills then: one that holds more requests at a
        time completes them later, be it the faster one.
        """
        same_seeds = reference.with_seeds_of(self)
        if name == COMPLETED_RATE and (self.completes_late or same_seeds.completes_late):
            return None
        values, others = self._values(name), same_seeds._values(name)
        if values is None or others is None:
            return None
        return [value - other for value, other in zip(values, others, strict=True)]

    def with_seeds_of(self, other: "Tried") -> "Tried":
        """These runs without those of seeds that the other one, with fewer, has not run."""
        return replace(self, summaries=self.summaries[: len(other.summaries)])

    def _values(self, name: str) -> list[float] | None:
        values = [NUMBERS[name](summary) for summary in self.summaries]
        present = [value for value in values if value is not None]
        return present if len(present) == len(values) else None

    @property
    def num_overloaded(self) -> int:
        """Seeds on which the server did not keep up with the arrivals."""
        return sum(bool(summary.get(OVERLOAD)) for summary in self.summaries)

    def falls_behind_at(self, limit: int) -> bool:
        """True if a seed falls behind, and those that do run nearly as many sequences as the limit
        of each engine at a time, the start and the drain included.
        """
        running = [
            of["batch"]["mean_over_time"] / of[RUN].get("replicas", 1)
            for of in self.summaries
            if of.get(OVERLOAD)
        ]
        return bool(running) and fmean(running) >= AT_LIMIT * limit

    @property
    def filling(self) -> float:
        """The largest share of the arrivals in which the server filled, of the seeds on which it
        keeps up with them; 0 if all arrive at once.
        """
        steady = [of for of in self._steady if of.get(WHILE_ARRIVING)]
        rates = [of["requests"]["arrived"] / arrivals_s(of) for of in steady]
        return max(map(filling_share, steady, rates), default=0.0)

    @property
    def still_fills(self) -> bool:
        """True if a seed's run is too short to tell whether the server keeps up: it still fills in
        the second half of the arrivals, and is not known to fall behind.
        """
        return any(is_filling(of.get(WHILE_ARRIVING)) for of in self._steady)

    @property
    def completes_late(self) -> bool:
        """True if a seed's server, which may fall behind, still fills in the second half of the
        arrivals.
        """
        return any(is_filling(of.get(WHILE_ARRIVING)) for of in self.summaries)

    @property
    def _steady(self) -> list[Mapping[str, Any]]:
        """The runs that are not known to fall behind."""
        return [of for of in self.summaries if not of.get(OVERLOAD)]

    @property
    def num_preempted(self) -> int:
        """Preemptions over all seeds."""
        return sum(sum(summary["preemptions"].values()) for summary in self.summaries)

    @property
    def num_held(self) -> float:
        """Sequences of the mean size of those that ran that the pool holds."""
        return fmean(
            of["batch"]["mean_per_iteration"] / of["memory"]["token_states"]["per_iteration"]
            for of in self.summaries
        )

    @property
    def num_arrived(self) -> int:
        """Requests that arrived, over all seeds."""
        return sum(summary["requests"]["arrived"] for summary in self.summaries)

    @property
    def num_rejected(self) -> int:
        """Requests that were rejected, over all seeds."""
        return sum(summary["requests"]["rejected"] for summary in self.summaries)

    def equals(self, reference: "Tried") -> bool:
        """True if every number is the reference's, with every seed."""
        others = reference.with_seeds_of(self)
        return all(self._values(name) == others._values(name) for name in NUMBERS)
