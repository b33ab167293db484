"""Drafts by extra layers of the model itself: EAGLE heads and multi-token prediction (MTP)."""

from dataclasses import replace
from typing import Any

from testbed.core.specs import ModelSpec, ServerSpec
from testbed.core.units import PositiveCount
from testbed.cost.analytic import Efficiencies
from testbed.cost.model import CostModel
from testbed.speculation.pass_cost import pass_cost
from testbed.speculation.speculation import Speculation


class Heads(Speculation):
    """num_layers layers as the model's own draft, from its last hidden states, one token a pass.

    They take the memory of such layers: weights, and K and V of each token. The hidden states
    behind a prefix hit are computed again, hence drops_last_block. A pass costs the roofline of the
    layers and of the vocabulary's matrix, with these efficiencies.
    """

    drops_last_block = True

    def __init__(
        self,
        num_drafts: PositiveCount = 3,
        num_layers: PositiveCount = 1,
        efficiencies: Efficiencies | None = None,
        **options: Any,
    ) -> None:
        super().__init__(num_drafts, **options)
        self.num_layers = num_layers
        self._efficiencies = efficiencies

    def drafter(self, model: ModelSpec) -> ModelSpec:
        return replace(
            model,
            name=f"{model.name} heads",
            num_layers=self.num_layers,
            num_ffn_layers=None,
            window=None,
            states=None,
            experts=model.experts and replace(model.experts, num_dense_layers=0),
            vision_params=None,
        )

    def weight_bytes(self, model: ModelSpec) -> int:
        """Those of the layers; the model's own matrices of the vocabulary serve them too."""
        return self.deeper(model).weight_bytes - model.weight_bytes

    def deeper(self, model: ModelSpec) -> ModelSpec:
        """The model with the heads as its last layers; and states that have room for the drafts."""
        num_layers = model.num_layers + self.num_layers
        ffn_layers = model.num_ffn_layers and model.num_ffn_layers + self.num_layers
        states = self.with_draft_states(model).states
        return replace(model, num_layers=num_layers, num_ffn_layers=ffn_layers, states=states)

    def draft_cost(self, model: ModelSpec, server: ServerSpec) -> CostModel:
        return pass_cost(self.drafter(model), server, self._efficiencies)
