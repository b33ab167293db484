"""Counts of drafts over a run."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class DraftCounts:
    """steps: of a sequence, each of which gives it a token; drafting: those with drafts. drafted:
    tokens verified besides. accepted: of these, those that became output tokens; what is behind an
    output's end is not. steps_by_accepted: the steps with drafts by the number accepted.
    """

    steps: int = 0
    drafting: int = 0
    drafted: int = 0
    accepted: int = 0
    steps_by_accepted: Counter[int] = field(default_factory=Counter)

    def add(self, num_drafts: int, num_accepted: int) -> None:
        """A sequence has verified its drafts."""
        self.steps += 1
        if num_drafts:
            self.drafting += 1
            self.drafted += num_drafts
            self.accepted += num_accepted
            self.steps_by_accepted[num_accepted] += 1

    @property
    def summary(self) -> dict[str, Any]:
        """The counts, and their ratios: output tokens of a step, the accepted share of drafts, the
        share of steps with drafts, and the share of these in which the first, second and so on was
        accepted; None without any.
        """
        return {
            "steps": self.steps,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "tokens_per_step": 1 + self.accepted / self.steps if self.steps else None,
            "accepted_share": self.accepted / self.drafted if self.drafted else None,
            "found_share": self.drafting / self.steps if self.steps else None,
            "accepted_by_place": self.rates if self.drafting else None,
        }

    @property
    def rates(self) -> list[float]:
        """The share of steps with drafts that accepted them up to each place."""
        most = max(self.steps_by_accepted, default=0)
        reached = [
            sum(steps for number, steps in self.steps_by_accepted.items() if number >= place)
            for place in range(1, most + 1)
        ]
        return [steps / self.drafting for steps in reached]
