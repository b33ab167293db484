"""Drafts by EAGLE: layers of their own behind the model's hidden states."""

from dataclasses import dataclass, replace
from typing import Any

from testbed.core.errors import InputError
from testbed.core.specs import ModelSpec, ServerSpec
from testbed.core.units import Count, PositiveCount
from testbed.cost.analytic import AnalyticCost, Efficiencies
from testbed.cost.model import CostModel
from testbed.speculation.speculation import Speculation

USUAL_VOCABULARY = 32_000  # of published EAGLE-3 drafters of Llama, Qwen3, DeepSeek and gpt-oss
OWN_LAYERS: dict[str, Any] = {
    "window": None,
    "chunks": None,
    "states": None,
    "experts": None,
    "num_ffn_layers": None,
    "gated_attention": None,
    "shared_kv": None,
    "weight_bits": None,
    "fp8_products": None,
    "vision_params": None,
    "has_sinks": None,
    "ffn_matrices": 3,
}  # of Llama's layers in 16 bits, whatever the model's are


@dataclass(frozen=True, slots=True)
class DrafterLayers:
    """Layers of a drafter, of Llama's form; None is the model's own number.

    Attributes:
        num_layers: transformer layers.
        hidden_size: values of an activation; a drafter of another size than the model's has an
            embedding of its own.
        num_heads: heads of a query.
        num_kv_heads: heads of K and V.
        head_size: values of a head.
        ffn_size: columns of the feed-forward network.
        vocab_size: tokens that it can draft, for which it has an output projection of its own;
            None: it uses the model's projection.
    """

    num_layers: PositiveCount = 1
    hidden_size: PositiveCount | None = None
    num_heads: PositiveCount | None = None
    num_kv_heads: PositiveCount | None = None
    head_size: PositiveCount | None = None
    ffn_size: PositiveCount | None = None
    vocab_size: PositiveCount | None = None

    def beside(self, model: ModelSpec) -> ModelSpec:
        """The layers as a shape; raises InputError for a model from which numbers cannot come."""
        if model.latent is not None:
            raise InputError(
                key="speculation",
                problem=f"EAGLE's layers beside latent attention ({model.name}) are not modelled",
                remedy="speculation=heads, or leave the drafter out",
            )
        if model.experts is not None and self.ffn_size is None:
            raise InputError(
                key="speculation.layers.ffn_size",
                problem=(
                    f"{model.name} has experts, and a drafter's feed-forward network is dense"
                ),
                remedy="give its columns",
            )
        sizes = ("hidden_size", "num_heads", "num_kv_heads", "head_size", "ffn_size", "vocab_size")
        own: dict[str, Any] = {name: getattr(self, name) or getattr(model, name) for name in sizes}
        return replace(
            model, name=f"{model.name} eagle", num_layers=self.num_layers, **own, **OWN_LAYERS
        )


class Eagle(Speculation):
    """EAGLE's drafter: a projection joins a token's embedding and the model's last hidden state,
    layers of its own follow, and the model's output projection gives the draft; one token a pass.

    The layers have weights, and K and V of each token. The projection is whole on each GPU. Hidden
    states behind a prefix hit are computed again, hence drops_last_block. A pass costs the roofline
    of these matrices, with these efficiencies. Norms are not counted. As in vLLM's
    llama_eagle.py and llama_eagle3.py, with a checkpoint that has no embedding, or the model's.
    """

    drops_last_block = True

    def __init__(
        self,
        num_drafts: PositiveCount = 3,
        layers: DrafterLayers | None = None,
        efficiencies: Efficiencies | None = None,
        **options: Any,
    ) -> None:
        super().__init__(num_drafts, **options)
        self.layers = DrafterLayers() if layers is None else layers
        self._efficiencies = efficiencies or Efficiencies()

    def drafter(self, model: ModelSpec) -> ModelSpec:
        own = self.layers.beside(model)
        params = self._joining_params(model, own) + self._wider_params(own)
        return replace(own, input_params=params or None)

    def _joining_params(self, model: ModelSpec, own: ModelSpec) -> int:
        return 2 * own.hidden_size**2

    def _wider_params(self, own: ModelSpec) -> int:
        """Weights that attention has beyond Llama's."""
        return 0

    def deeper(self, model: ModelSpec) -> ModelSpec | None:
        """The model with layers that cache as the drafter's do; None if its own cache otherwise."""
        own = self.layers.beside(model)
        if own.slot_bytes != model.slot_bytes:
            return None
        num_layers = model.num_layers + own.num_layers
        return replace(self.with_draft_states(model), num_layers=num_layers)

    def weight_bytes(self, model: ModelSpec) -> int:
        """Bytes of the layers, and of matrices of the vocabulary that are not the model's."""
        own = self.drafter(model)
        params = own.dense_params - self._joining_params(model, own)
        if self.layers.vocab_size is not None:
            params += own.vocab_size * own.hidden_size
        if own.hidden_size != model.hidden_size:
            params += model.vocab_size * own.hidden_size
        return params * own.dtype_bytes

    def replicated_bytes(self, model: ModelSpec) -> int:
        """The projection that joins."""
        own = self.layers.beside(model)
        return self._joining_params(model, own) * own.dtype_bytes

    def draft_cost(self, model: ModelSpec, server: ServerSpec) -> CostModel:
        return AnalyticCost(self.drafter(model), server, self._efficiencies)


class Eagle3(Eagle):
    """EAGLE-3's drafter: a projection joins num_states hidden states of the model (0: there is
    none), and the first layer attends to the token's embedding beside them, so that its Q, K and V
    have twice as many inputs.
    """

    def __init__(
        self,
        num_drafts: PositiveCount = 3,
        num_states: Count = 3,
        layers: DrafterLayers | None = None,
        **options: Any,
    ) -> None:
        """A drafter; without layers one of the model's sizes, with a vocabulary of 32,000."""
        usual = DrafterLayers(vocab_size=USUAL_VOCABULARY)
        super().__init__(num_drafts, usual if layers is None else layers, **options)
        self.num_states = num_states

    def _joining_params(self, model: ModelSpec, own: ModelSpec) -> int:
        return self.num_states * model.hidden_size * own.hidden_size

    def _wider_params(self, own: ModelSpec) -> int:
        return own.hidden_size * own.head_size * (own.num_heads + 2 * own.num_kv_heads)
