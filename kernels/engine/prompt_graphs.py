"""Iterations with prompts as CUDA graphs: what lies between the attention of two layers is a graph;
attention is launched between the graphs, since its grid depends on the batch.

The graphs of a size serve every batch of at most that many tokens. Rows past the batch compute
values that are not read: a row of a layer depends on others in attention alone, which has the
batch's rows.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from testbed.kernels.engine.graphs import NUM_IN_FLIGHT, Capture
from testbed.kernels.engine.network import Buffers, LayerSteps, Network, PlainAttention
from testbed.kernels.engine.ragged import (
    Arrays,
    Ragged,
    complete,
    fill_inputs,
    input_shapes,
)
from testbed.kernels.engine.sizes import sizes_up_to
from testbed.kernels.engine.weights import Layer


class CapturedLayers:
    """The graphs of all layers for num_tokens tokens, the rows of `buffers`."""

    def __init__(self, network: Network, buffers: Buffers, capture: Capture) -> None:
        self.network = network
        self.buffers = buffers
        num_tokens = len(buffers.x)
        shapes = {**input_shapes(num_tokens), "wanted": ((num_tokens,), np.int64)}
        self.arrays = Arrays(shapes, buffers.x.device, NUM_IN_FLIGHT)
        self.arrays.send()
        with torch.inference_mode():
            self._graphs = [capture(piece) for piece in self._pieces()]

    def fill(self, batch: Ragged) -> None:
        """Set the arrays of the next replay to this batch; those of the replay before may be under
        way.
        """
        self.arrays.take_turns()
        fill_inputs(self.arrays.host, batch)
        self.arrays.host["wanted"][: len(batch.wanted)] = batch.wanted

    def replay(self, batch: Ragged, attention: PlainAttention) -> Tensor:
        """The residual stream of the wanted rows behind the last layer, but for its bias. The
        arrays of the batch were set, and `attention` is open for it.
        """
        self.arrays.send()
        complete(self.arrays.device, batch)
        buffers = self.buffers.first(len(batch.tokens))
        attend = attention.bind(*buffers.attention(self.network.arch))
        self._graphs[0].replay()
        for layer, graph in enumerate(self._graphs[1:]):
            attend(layer)
            graph.replay()
        return buffers.x[self.arrays.device["wanted"][: len(batch.wanted)]]

    def _pieces(self) -> Iterator[Callable[[], None]]:
        """The work of each graph: one before the first attention, one behind each."""
        layers = self.network.layers
        yield self._begin
        for layer, following in pairwise(layers):
            yield partial(self._between, layer, following)
        yield self._end

    def _begin(self) -> None:
        inputs = self.arrays.device
        self.buffers.x.copy_(self.network.embed(inputs["tokens"], inputs["positions"]))
        self._steps().before_attention(self.network.layers[0], None)

    def _between(self, layer: Layer, following: Layer) -> None:
        steps = self._steps()
        steps.before_attention(following, steps.after_attention(layer))

    def _end(self) -> None:
        self._steps().after_attention(self.network.layers[-1])

    def _steps(self) -> LayerSteps:
        """Bound to the stream of the capture."""
        return LayerSteps(self.network, self.buffers, self.arrays.device["positions"])


class PromptGraphs:
    """Runs iterations of up to max_tokens tokens by graphs, and others by `otherwise`.

    `launched` is called when an iteration's work on the GPU begins.
    """

    def __init__(
        self,
        network: Network,
        attention: PlainAttention,
        max_tokens: int,
        otherwise: Callable[[Ragged], Tensor],
        launched: Callable[[], None],
        capture: Capture,
    ) -> None:
        self.network = network
        self.attention = attention
        self.otherwise = otherwise
        self.launched = launched
        self.sizes = sizes_up_to(max_tokens)
        like = network.weights.embedding
        x = like.new_zeros(self.sizes[-1], network.arch.spec.hidden_size)
        buffers = Buffers.beside(x, network.arch)
        self._captured = {
            size: CapturedLayers(network, buffers.first(size), capture)
            for size in reversed(self.sizes)
        }

    def forward(self, batch: Ragged) -> Tensor:
        """The logits of the wanted rows."""
        num_tokens = len(batch.tokens)
        if num_tokens > self.sizes[-1]:
            return self.otherwise(batch)
        captured = self._captured[self.sizes[bisect_left(self.sizes, num_tokens)]]
        captured.fill(batch)
        self.launched()
        with torch.inference_mode():
            self.attention.open(batch)
            x = captured.replay(batch, self.attention)
            carried = self.network.layers[-1].down.bias
            return self.network.project_out(x, carried, self.network.weights.head)
