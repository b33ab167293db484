"""Drafts by extra layers of the model itself: multi-token prediction (MTP)."""

from dataclasses import replace
from typing import Any

from testbed.core.specs import ModelSpec, ServerSpec
from testbed.core.units import PositiveCount
from testbed.cost.analytic import AnalyticCost, Efficiencies
from testbed.cost.model import CostModel
from testbed.speculation.speculation import Speculation


class Heads(Speculation):
    """num_layers layers as the model's own draft, from its last hidden states, one token a pass.

    They take the memory of such layers: weights, and K and V of each token. Before each layer a
    projection joins the token's embedding and the last hidden state (2 x hidden_size rows). The
    hidden states behind a prefix hit are computed again, hence drops_last_block. A pass costs the
    roofline of the layers and of the vocabulary's matrix, with these efficiencies.
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
        self._efficiencies = efficiencies or Efficiencies()

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
            input_params=self._joining_params(model),
        )

    def _joining_params(self, model: ModelSpec) -> int:
        return self.num_layers * 2 * model.hidden_size**2

    def weight_bytes(self, model: ModelSpec) -> int:
        """Bytes of the layers; the model's own matrices of the vocabulary serve them too."""
        layers = self.deeper(model).weight_bytes - model.weight_bytes
        return layers + self._joining_bytes(model, is_divided=True)

    def replicated_bytes(self, model: ModelSpec) -> int:
        """The projections, in 16 bits even if the layers are quantised."""
        return self._joining_bytes(model, is_divided=False)

    def _joining_bytes(self, model: ModelSpec, *, is_divided: bool) -> int:
        """The projections' bytes if they are held so: vLLM divides them for models with states
        (Qwen3-Next), and for no others (DeepSeek, GLM).
        """
        if is_divided != (model.states is not None):
            return 0
        return self._joining_params(model) * model.dtype_bytes

    def deeper(self, model: ModelSpec) -> ModelSpec:
        """The model with the heads as its last layers; and states that have room for the drafts."""
        num_layers = model.num_layers + self.num_layers
        ffn_layers = model.num_ffn_layers and model.num_ffn_layers + self.num_layers
        states = self.with_draft_states(model).states
        return replace(model, num_layers=num_layers, num_ffn_layers=ffn_layers, states=states)

    def draft_cost(self, model: ModelSpec, server: ServerSpec) -> CostModel:
        return AnalyticCost(self.drafter(model), server, self._efficiencies)
