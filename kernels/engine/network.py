"""The forward pass: embedding, layers, output projection. It knows tokens and positions; slots are attention's."""

import torch.nn.functional as F
from torch import Tensor

from kernels.engine.architecture import Architecture
from kernels.engine.maths import Maths
from kernels.engine.plain_attention import Attention
from kernels.engine.rotary import rotary_table
from kernels.engine.weights import Layer, Weights


class Network:
    """A model's weights and how they are used; residuals are added by the products themselves."""

    def __init__(self, arch: Architecture, weights: Weights, maths: Maths) -> None:
        self.arch = arch
        self.weights = weights
        self.maths = maths
        self.turns = None if arch.is_opt else rotary_table(arch, str(weights.embedding.device))

    def logits(self, tokens: Tensor, positions: Tensor, wanted: Tensor | None, attention: Attention) -> Tensor:
        """Logits of the `wanted` rows, or of all: [num_wanted, vocab_size], in the weights' type.

        tokens, positions: int64 [num_tokens]; wanted: int64 [num_wanted].
        """
        w = self.weights
        x = F.embedding(tokens, w.embedding)
        if w.positions is not None:
            x += F.embedding(positions, w.positions)
        carried: Tensor | None = None
        for i, layer in enumerate(w.layers):
            carried = self._layer(i, x, carried, layer, positions, attention)
        if wanted is not None:
            x = x[wanted]
        return F.linear(self.maths.norm(x, carried, w.norm, self.arch.norm_eps), w.head)

    def _layer(
        self, i: int, x: Tensor, carried: Tensor | None, layer: Layer, positions: Tensor, attention: Attention
    ) -> Tensor | None:
        """One layer; returns the bias that x still lacks."""
        arch, maths = self.arch, self.maths
        h = maths.norm(x, carried, layer.norm_1, arch.norm_eps)
        qkv = F.linear(h, layer.qkv.weight, layer.qkv.bias)
        parts = qkv.split((arch.q_width, arch.kv_width, arch.kv_width), dim=1)
        q, k, v = (part.unflatten(1, (-1, arch.spec.head_size)) for part in parts)
        if self.turns is not None:
            maths.turn(q, k, positions, self.turns)
        x.addmm_(attention.layer(i, q, k, v).flatten(1), layer.out.weight.t())
        h = maths.norm(x, layer.out.bias, layer.norm_2, arch.norm_eps)
        x.addmm_(maths.activate(h, layer.up, not arch.is_opt), layer.down.weight.t())
        return layer.down.bias
