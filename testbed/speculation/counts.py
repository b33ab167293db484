"""What became of drafts, counted over a run."""

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class DraftCounts:
    """steps: of a sequence, each of which gives it a token. drafted: tokens verified besides.
    accepted: of these, those that became output tokens; what is behind an output's end is not.
    """

    steps: int = 0
    drafted: int = 0
    accepted: int = 0

    def add(self, num_drafts: int, num_accepted: int) -> None:
        """A sequence has verified its drafts."""
        self.steps += 1
        self.drafted += num_drafts
        self.accepted += num_accepted

    @property
    def summary(self) -> dict[str, Any]:
        """The counts, and their ratios: output tokens of a step, and the accepted share of drafts;
        None without any.
        """
        return {
            "steps": self.steps,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "tokens_per_step": 1 + self.accepted / self.steps if self.steps else None,
            "accepted_share": self.accepted / self.drafted if self.drafted else None,
        }
