"""Drafts copied from the sequence's own tokens by the GPU, as many at each step."""

from typing import Any

from testbed.core.specs import ModelSpec
from testbed.core.units import Count, Share
from testbed.speculation.acceptance import Acceptance
from testbed.speculation.ngram import is_found
from testbed.speculation.speculation import Speculation


class NGramGpu(Speculation):
    """The last tokens are looked for on the GPU, so that the next iteration is planned before the
    drafts are known.

    Each step verifies num_drafts tokens: if nothing is found they are fillers, which the model
    rejects (vLLM's ngram_gpu, and its ngram in newer releases). found_share of the positions have
    a draft, drawn as in NGram.
    """

    def __init__(self, found_share: Share = 1.0, seed: Count = 0, **options: Any) -> None:
        super().__init__(**options)
        self.found_share = found_share
        self.acceptance = _WhereFound(self.acceptance, found_share, seed)

    @property
    def num_lookahead(self) -> int:
        return 0

    def drafter(self, model: ModelSpec) -> ModelSpec | None:
        return None


class _WhereFound(Acceptance):
    """Drafts are accepted as another rule says, and fillers never."""

    def __init__(self, of_drafts: Acceptance, found_share: float, seed: int) -> None:
        self._of_drafts = of_drafts
        self._found_share = found_share
        self._seed = seed

    def accepted(self, request_id: int, num_generated: int, num_drafts: int) -> int:
        if not is_found(self._seed, request_id, num_generated, self._found_share):
            return 0
        return self._of_drafts.accepted(request_id, num_generated, num_drafts)
