"""The plug-in API for speculation: a drafter, its number of tokens, its memory and its time."""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import ClassVar

from testbed.core.errors import InputError
from testbed.core.specs import ModelSpec, ServerSpec
from testbed.core.units import PositiveCount
from testbed.cost.model import CostModel
from testbed.speculation.acceptance import Acceptance, Constant


class Speculation(ABC):
    """Draft tokens are proposed for each sequence behind every iteration that gives it a token; the
    next one verifies them together with that token.

    Attributes:
        num_lookahead: slots on top of those of the tokens that an iteration computes, for K and V
            that the drafter stores ahead.
        drops_last_block: the last block of a prefix hit is computed again, because the drafter
            reads its hidden states, which no cache has.
        drafts_on_gpu: drafts never leave the GPU, so that the next iteration can be planned before
            they are known.
        num_inserted: tokens of each sequence that a drafter's batch has on top of the model's,
            which a server takes off its budget for each sequence that it may run.
    """

    drops_last_block: ClassVar[bool] = False
    drafts_on_gpu: ClassVar[bool] = True
    num_inserted: ClassVar[int] = 0

    def __init__(
        self,
        num_drafts: PositiveCount = 3,
        off_above: PositiveCount | None = None,
        keeps_slots: bool = True,
        takes_memory: bool = True,
        acceptance: Acceptance | None = None,
    ) -> None:
        """A rule; further parameters are given by name.

        Args:
            num_drafts: draft tokens of a sequence in an iteration.
            off_above: no drafts if more requests than this were in the iteration; None: always.
            keeps_slots: slots of rejected drafts stay with their sequence until it ends, as in
                vLLM; else they return when the results are in.
            takes_memory: False leaves out the drafter's weights, its K and V and its look-ahead, as
                a simulator does that models the time of drafts alone.
            acceptance: how many are accepted; None: 70% of each draft token.
        """
        self.max_drafts = num_drafts
        self.off_above = off_above
        self.keeps_slots = keeps_slots
        self.takes_memory = takes_memory
        self.acceptance = Constant() if acceptance is None else acceptance
        if not isinstance(self.acceptance, Acceptance):
            raise InputError(
                key="speculation.acceptance",
                value=type(acceptance).__name__,
                problem="is no testbed.speculation.acceptance.Acceptance",
            )

    @property
    def num_lookahead(self) -> int:
        return self.max_drafts if self.takes_memory else 0

    def num_drafts(self, request_id: int, num_generated: int, batch_size: int) -> int:
        """Draft tokens of one sequence in the next iteration.

        Args:
            request_id: whose sequence.
            num_generated: its output tokens.
            batch_size: requests of the iteration.
        """
        is_off = self.off_above is not None and batch_size > self.off_above
        return 0 if is_off else self.max_drafts

    @abstractmethod
    def drafter(self, model: ModelSpec) -> ModelSpec | None:
        """The shape of what drafts: its weights and its K and V take memory beside the model's, and
        each pass of it takes time. None: nothing on the GPU.

        Args:
            model: for which it drafts.
        """

    def deeper(self, model: ModelSpec) -> ModelSpec | None:
        """The model with what drafts as its last layers; None if that is no part of it.

        Args:
            model: for which it drafts.
        """
        return None

    def with_draft_states(self, model: ModelSpec) -> ModelSpec:
        """The model whose states have room for each draft.

        Args:
            model: for which it drafts.
        """
        states = model.states
        if states is None or not states.draft_bytes:
            return model
        more = self.max_drafts * states.draft_bytes
        return replace(model, states=replace(states, state_bytes=states.state_bytes + more))

    def weight_bytes(self, model: ModelSpec) -> int:
        """Bytes of the drafter's weights that the GPUs divide among themselves.

        Args:
            model: for which it drafts.
        """
        drafter = self.drafter(model)
        return 0 if drafter is None else drafter.weight_bytes

    def replicated_bytes(self, model: ModelSpec) -> int:
        """Bytes of the drafter's weights that each GPU holds whole.

        Args:
            model: for which it drafts.
        """
        return 0

    def draft_cost(self, model: ModelSpec, server: ServerSpec) -> CostModel | None:
        """The cost of a pass of the drafter; None: no time.

        Args:
            model: for which it drafts.
            server: on which it runs.
        """
        return None
