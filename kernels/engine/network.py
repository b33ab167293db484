"""The forward pass: embedding, layers, output projection; and attention in torch. Only attention
uses slots.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from testbed.kernels.engine.architecture import Architecture
from testbed.kernels.engine.layout import Blocks, Pools
from testbed.kernels.engine.maths import PlainMaths, rotary_table
from testbed.kernels.engine.parallel.ranks import ONE_RANK, OneRank
from testbed.kernels.engine.ragged import Ragged
from testbed.kernels.engine.weights import Affine, Layer, Weights
from testbed.kernels.verify.reference import dequantized, full_attention, quantized

Bind = Callable[[Tensor, Tensor, Tensor, Tensor], Callable[[int], None]]  # as PlainAttention.bind


class PlainAttention:
    """Writes the new K and V of an iteration to their slots and attends to all stored tokens, layer
    by layer.

    By the kernels' references; for any device, layout and type. windows: of each layer, None for
    full.
    """

    def __init__(self, pools: Pools, layout: Blocks, windows: tuple[int | None, ...]) -> None:
        self.pools = pools
        self.layout = layout
        self.windows = windows
        self._read: list[list[Tensor]] = []  # of each column and part, rows of K and V
        self._written: list[Tensor] = []  # of each column
        self._new: Tensor = torch.empty(0, dtype=torch.int64)

    def open(self, batch: Ragged) -> None:
        """Compute the rows that every part reads, and the rows of every token that is not stored
        yet.
        """
        device, layout = self.pools.device.device, self.layout
        self._starts = batch.query_starts.tolist()
        new = [
            np.arange(max(part.num_stored, part.written), part.context_len) for part in batch.parts
        ]
        rows = zip(batch.parts, self._starts[:-1], new, strict=True)
        self._new = torch.from_numpy(
            np.concatenate([at - p.num_stored + first for p, first, at in rows])
        ).to(device)
        self._read, self._written = [], []
        for column in range(layout.num_columns):
            contexts = [
                layout.rows(place, np.arange(part.context_len), column)
                for part, place in zip(batch.parts, batch.places, strict=True)
            ]
            written = np.concatenate([rows[at] for rows, at in zip(contexts, new, strict=True)])
            self._written.append(torch.from_numpy(written).to(device))
            self._read.append([torch.from_numpy(rows).to(device) for rows in contexts])

    def bind(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> Callable[[int], None]:
        """A function of the layer number that fills `out`, to be called when q, k and v contain the
        layer's values.

        q, out: [num_tokens, num_heads, head_size]; k, v: [num_tokens, kv heads, head_size].
        """
        return lambda layer: self._layer(layer, q, k, v, out)

    def _layer(self, layer: int, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        column, caches = self.layout.column_of(layer), self.layout.rows_of(self.pools, layer)
        scales = (None, None) if self.pools.scales is None else self.pools.scales[layer]
        for cache, new, scale in zip(caches, (k, v), scales, strict=True):
            stored = new[self._new]
            cache[self._written[column]] = stored if scale is None else quantized(stored, scale)
        window = self.windows[layer]
        for rows, first, end in zip(
            self._read[column], self._starts, self._starts[1:], strict=False
        ):
            read = (
                rows if window is None else rows[max(0, len(rows) - (end - first) + 1 - window) :]
            )
            k_read, v_read = (
                cache[read].float() if scale is None else dequantized(cache[read], scale)
                for cache, scale in zip(caches, scales, strict=True)
            )
            out[first:end] = full_attention(q[first:end].float(), k_read, v_read, window=window).to(
                q.dtype
            )


class Network:
    """A model's weights and its forward pass; the matrix products add the residuals.

    arch and weights are those of a rank, whose results `ranks` joins with the others'.
    """

    def __init__(
        self,
        arch: Architecture,
        weights: Weights,
        maths: PlainMaths,
        ranks: OneRank = ONE_RANK,
    ) -> None:
        self.arch = arch
        self.weights = weights
        self.maths = maths
        self.ranks = ranks
        self.layers = [_turned(layer) for layer in weights.layers]
        self.turns = None if arch.is_opt else rotary_table(arch, str(weights.embedding.device))

    def logits(
        self,
        tokens: Tensor,
        positions: Tensor,
        wanted: Tensor | None,
        attention: PlainAttention,
        out: Tensor | None = None,
    ) -> Tensor:
        """Logits of the `wanted` rows, or of all: [num_wanted, vocab_size], in the weights' type;
        in `out` if there is one.

        tokens, positions: int64 [num_tokens]; wanted: int64 [num_wanted].
        """
        x = self.embed(tokens, positions)
        carried = self.run_layers(x, positions, attention.bind)
        rows = x if wanted is None else x[wanted]
        return self.project_out(rows, carried, self.weights.head, out)

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """The residual stream before the first layer, [num_tokens, hidden]."""
        w = self.weights
        x = self.ranks.embed(tokens, w.embedding)
        if w.positions is not None:
            x += F.embedding(positions, w.positions)
        return x

    def run_layers(self, x: Tensor, positions: Tensor, bind: Bind) -> Tensor | None:
        """Every layer, on x in place; returns the bias that the last norm must add."""
        buffers = Buffers.beside(x, self.arch)
        steps, attend = LayerSteps(self, buffers, positions), bind(*buffers.attention(self.arch))
        carried: Tensor | None = None
        for i, layer in enumerate(self.layers):
            steps.before_attention(layer, carried)
            attend(i)
            carried = steps.after_attention(layer)
        return carried

    def project_out(
        self, x: Tensor, carried: Tensor | None, head: Tensor, out: Tensor | None = None
    ) -> Tensor:
        """The last norm and the output projection, into `out` if there is one."""
        h = torch.empty_like(x)
        if len(x):
            self.maths.norm(h, x, self.arch.norm_eps)(self.weights.norm, carried)
        return self.ranks.project(h, head, out)


class Buffers(NamedTuple):
    """Buffers that the layers of a forward pass write, [num_tokens, ...] each, the same for all
    layers.

    x: the residual stream; h: a norm of it; qkv: queries, keys and values; attended: the output of
    attention; active: the input of the last product; gated: gate and value of a gated one.
    """

    x: Tensor
    h: Tensor
    qkv: Tensor
    attended: Tensor
    active: Tensor
    gated: Tensor | None

    @classmethod
    def beside(cls, x: Tensor, arch: Architecture) -> "Buffers":
        """Buffers for the layers of a model, beside the residual stream."""
        num_tokens, ffn = len(x), arch.spec.ffn_size
        return cls(
            x,
            torch.empty_like(x),
            x.new_empty(num_tokens, arch.q_width + 2 * arch.kv_width),
            x.new_empty(num_tokens, arch.q_width),
            x.new_empty(num_tokens, ffn),
            None if arch.is_opt else x.new_empty(num_tokens, 2 * ffn),
        )

    def attention(self, arch: Architecture) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries, keys, values and the output of attention, [num_tokens, heads, head_size]."""
        q, k, v = torch.split(self.qkv, [arch.q_width, arch.kv_width, arch.kv_width], dim=1)
        q, k, v, out = (x.unflatten(1, (-1, arch.spec.head_size)) for x in (q, k, v, self.attended))
        return q, k, v, out

    def first(self, num_tokens: int) -> "Buffers":
        """The rows of the first tokens."""
        x, h, qkv, attended, active, gated = self
        end = num_tokens
        return Buffers(
            x=x[:end],
            h=h[:end],
            qkv=qkv[:end],
            attended=attended[:end],
            active=active[:end],
            gated=None if gated is None else gated[:end],
        )


class LayerSteps:
    """Steps of a layer before and after attention, bound to the buffers of a forward pass, on the
    stream current now.
    """

    def __init__(self, network: Network, buffers: Buffers, positions: Tensor) -> None:
        arch, maths = network.arch, network.maths
        self.buffers, self.maths, self.ranks = buffers, maths, network.ranks
        q, k, _, _ = buffers.attention(arch)
        self.norm = maths.norm(buffers.h, buffers.x, arch.norm_eps)
        self.turn = None if network.turns is None else maths.turn(q, k, positions, network.turns)
        gated = buffers.gated
        self.silu_mul = None if gated is None else maths.silu_mul(buffers.active, gated)

    def before_attention(self, layer: Layer, carried: Tensor | None) -> None:
        """Queries, keys and values; carried: the bias that the norm must add to x."""
        self.norm(layer.norm_1, carried)
        multiply(self.buffers.qkv, self.buffers.h, layer.qkv)
        if self.turn is not None:
            self.turn()

    def after_attention(self, layer: Layer) -> Tensor | None:
        """The rest of the layer; returns the bias that the next norm must add to x."""
        x, h, _, attended, active, gated = self.buffers
        self.ranks.add_product(x, attended, layer.out.weight)
        self.norm(layer.norm_2, layer.out.bias)
        if gated is not None and self.silu_mul is not None:
            multiply(gated, h, layer.up)
            self.silu_mul()
        else:
            assert layer.up.bias is not None, "OPT has biases everywhere"
            self.maths.relu_product(active, h, layer.up.weight, layer.up.bias)
        self.ranks.add_product(x, active, layer.down.weight)
        return layer.down.bias


def multiply(y: Tensor, x: Tensor, product: Affine) -> None:
    """y = x @ weight + bias."""
    if product.bias is None:
        torch.mm(x, product.weight, out=y)
    else:
        torch.addmm(product.bias, x, product.weight, out=y)


def _turned(layer: Layer) -> Layer:
    qkv, out, up, down = (
        Affine(p.weight.t(), p.bias) for p in (layer.qkv, layer.out, layer.up, layer.down)
    )
    return Layer(layer.norm_1, qkv, out, layer.norm_2, up, down)
