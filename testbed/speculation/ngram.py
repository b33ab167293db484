"""Drafts copied from the sequence's own tokens (prompt lookup)."""

from typing import Any

from testbed.core.errors import InputError
from testbed.core.specs import ModelSpec
from testbed.core.units import Count, PositiveCount, Share
from testbed.speculation.speculation import Speculation
from testbed.speculation.token_random import uniform

FOUND = 2  # stream of random numbers


def is_found(seed: int, request_id: int, position: int, share: float) -> bool:
    """True if the tokens before a position occur earlier in the sequence, as `share` of all do."""
    return share == 1 or uniform(seed, request_id, position, FOUND) < share


class NGram(Speculation):
    """The last tokens are looked for in what precedes them, and what followed there is the draft.

    A simulated output has no tokens: found_share of its positions have such a place, drawn by
    request and position as the draws of the drafts are. The look-up runs on the CPU, so that the
    next iteration cannot be planned ahead (vLLM turns asynchronous scheduling off too, in releases
    that look on the CPU), and it takes neither slots nor time of the GPU. The GPU engine looks
    itself, for the longest run of the last lookup_max to lookup_min tokens (vLLM's
    prompt_lookup_max and prompt_lookup_min).
    """

    drafts_on_gpu = False

    def __init__(
        self,
        num_drafts: PositiveCount = 3,
        found_share: Share = 1.0,
        lookup_min: PositiveCount = 5,
        lookup_max: PositiveCount = 5,
        seed: Count = 0,
        **options: Any,
    ) -> None:
        super().__init__(num_drafts, **options)
        if lookup_min > lookup_max:
            raise InputError(
                key="speculation.lookup_min",
                value=lookup_min,
                problem=f"is more than lookup_max={lookup_max}",
                remedy="give no more",
            )
        self.found_share = found_share
        self.lookup_min = lookup_min
        self.lookup_max = lookup_max
        self.seed = seed

    @property
    def num_lookahead(self) -> int:
        return 0

    def num_drafts(self, request_id: int, num_generated: int, batch_size: int) -> int:
        if not is_found(self.seed, request_id, num_generated, self.found_share):
            return 0
        return super().num_drafts(request_id, num_generated, batch_size)

    def drafter(self, model: ModelSpec) -> ModelSpec | None:
        return None
