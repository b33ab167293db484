"""The forward pass: embedding, layers, output projection. Only attention uses slots."""

import torch
import torch.nn.functional as F
from torch import Tensor

from testbed.kernels.engine.architecture import Architecture
from testbed.kernels.engine.maths import PlainMaths, rotary_table
from testbed.kernels.engine.plain_attention import Attention
from testbed.kernels.engine.weights import Affine, Layer, Weights


class Network:
    """A model's weights and its forward pass; the matrix products add the residuals."""

    def __init__(self, arch: Architecture, weights: Weights, maths: PlainMaths) -> None:
        self.arch = arch
        self.weights = weights
        self.maths = maths
        self.layers = [_turned(layer) for layer in weights.layers]
        self.turns = None if arch.is_opt else rotary_table(arch, str(weights.embedding.device))

    def logits(self, tokens: Tensor, positions: Tensor, wanted: Tensor | None, attention: Attention) -> Tensor:
        """Logits of the `wanted` rows, or of all: [num_wanted, vocab_size], in the weights' type.

        tokens, positions: int64 [num_tokens]; wanted: int64 [num_wanted].
        """
        w = self.weights
        x = F.embedding(tokens, w.embedding)
        if w.positions is not None:
            x += F.embedding(positions, w.positions)
        one_layer = Pass(self, x, positions, attention)
        carried: Tensor | None = None
        for i, layer in enumerate(self.layers):
            carried = one_layer(i, layer, carried)
        if wanted is not None:
            x = x[wanted]
        h = torch.empty_like(x)
        if len(x):
            self.maths.norm(h, x, self.arch.norm_eps)(w.norm, carried)
        return F.linear(h, w.head)


class Pass:
    """One forward pass: buffers that all layers share, and the operations bound to them."""

    def __init__(self, network: Network, x: Tensor, positions: Tensor, attention: Attention) -> None:
        arch, maths = network.arch, network.maths
        size, ffn = arch.spec.head_size, arch.spec.ffn_size
        self.x, self.maths = x, maths
        self.h = torch.empty_like(x)
        self.qkv = x.new_empty(len(x), arch.q_width + 2 * arch.kv_width)
        parts = torch.split(self.qkv, [arch.q_width, arch.kv_width, arch.kv_width], dim=1)
        q, k, v = (part.unflatten(1, (-1, size)) for part in parts)
        self.attended = x.new_empty(len(x), arch.q_width)
        self.active = x.new_empty(len(x), ffn)
        self.norm = maths.norm(self.h, x, arch.norm_eps)
        self.turn = None if network.turns is None else maths.turn(q, k, positions, network.turns)
        self.attend = attention.bind(q, k, v, self.attended.unflatten(1, (-1, size)))
        self.gated = None if arch.is_opt else x.new_empty(len(x), 2 * ffn)
        self.silu_mul = None if self.gated is None else maths.silu_mul(self.active, self.gated)

    def __call__(self, i: int, layer: Layer, carried: Tensor | None) -> Tensor | None:
        """Run layer i; returns the bias that the next norm must add to x."""
        self.norm(layer.norm_1, carried)
        multiply(self.qkv, self.h, layer.qkv)
        if self.turn is not None:
            self.turn()
        self.attend(i)
        self.x.addmm_(self.attended, layer.out.weight)
        self.norm(layer.norm_2, layer.out.bias)
        if self.gated is not None and self.silu_mul is not None:
            multiply(self.gated, self.h, layer.up)
            self.silu_mul()
        else:
            assert layer.up.bias is not None, "OPT has biases everywhere"
            self.maths.relu_product(self.active, self.h, layer.up.weight, layer.up.bias)
        self.x.addmm_(self.active, layer.down.weight)
        return layer.down.bias


def multiply(y: Tensor, x: Tensor, product: Affine) -> None:
    """y = x @ weight + bias."""
    if product.bias is None:
        torch.mm(x, product.weight, out=y)
    else:
        torch.addmm(product.bias, x, product.weight, out=y)


def _turned(layer: Layer) -> Layer:
    qkv, out, up, down = (Affine(p.weight.t(), p.bias) for p in (layer.qkv, layer.out, layer.up, layer.down))
    return Layer(layer.norm_1, qkv, out, layer.norm_2, up, down)
