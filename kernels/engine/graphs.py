"""Decode iterations as CUDA graphs: one per bucket of batch sizes and of contexts, replayed with
new arrays.

A captured launch has a fixed grid, so a batch is padded with sequences without context, which read
and write nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from testbed.kernels.engine.cuda_attention import CudaAttention
from testbed.kernels.engine.layout import Place
from testbed.kernels.engine.network import Network
from testbed.kernels.engine.ragged import Arrays, Ragged, complete, fill_inputs, input_shapes
from testbed.kernels.engine.shared_runs import NO_RUN, Run
from testbed.kernels.engine.sizes import (
    BUCKETS,
    bucket,
    buckets_up_to,
    context_bucket,
    contexts_up_to,
)
from testbed.kernels.measure.timing import capture

NUM_IN_FLIGHT = 2  # iterations, the one that runs and the one behind it

Capture = Callable[[Callable[[], None]], torch.cuda.CUDAGraph]  # of a call, which is made twice


class Captures:
    """The CUDA graphs of an engine. `release` ends them, after which none may be replayed: NCCL
    does not end its communicator while a graph has one of its collectives.

    They are captured on a stream of their own, whose workspace of cuBLAS lasts as long as they do.
    """

    def __init__(self) -> None:
        self._graphs: list[torch.cuda.CUDAGraph] = []

    @cached_property
    def _stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream()

    def sharing_memory(self) -> Capture:
        """A capture of graphs that share their memory, so that one is replayed at a time."""
        memory, stream = torch.cuda.graph_pool_handle(), self._stream

        def kept(call: Callable[[], None]) -> torch.cuda.CUDAGraph:
            self._graphs.append(capture([call], 1, memory, stream))
            return self._graphs[-1]

        return kept

    def release(self) -> None:
        """End the graphs, also those that the device runs."""
        for graph in self._graphs:
            graph.reset()
        self._graphs.clear()


class Captured:
    """One graph: up to num_seqs sequences of up to longest tokens; shares: with a run that reads
    its first tokens once. logits: that graphs which are replayed one after the other write, [at
    least num_seqs, vocab_size].
    """

    def __init__(
        self,
        network: Network,
        attention: CudaAttention,
        num_seqs: int,
        longest: int,
        shares: bool,
        logits: Tensor,
        capture: Capture,
    ) -> None:
        self.attention = attention
        self._logits = logits[:num_seqs]
        shapes = {**input_shapes(num_seqs), **attention.decode_shapes(num_seqs, longest)}
        self.arrays = Arrays(shapes, torch.device("cuda"), NUM_IN_FLIGHT)
        attention.clear(self.arrays.host)
        self.arrays.send()
        self._places = [list[Place]() for _ in self.arrays.hosts]
        there = self.arrays.device
        attention.open_decodes(there, longest, shares)

        def run() -> None:
            inputs = there["tokens"], there["positions"], None
            network.logits(*inputs, attention, self._logits)

        with torch.inference_mode():
            self._graph = capture(run)

    def fill(self, batch: Ragged, run: Run) -> None:
        """Set the arrays of the next replay to this batch of decodes; those of the replay before
        may be under way.
        """
        self.arrays.take_turns()
        host, turn = self.arrays.host, self.arrays.turn
        fill_inputs(host, batch)
        self.attention.clear(host)
        self.attention.fill(host, batch, self._places[turn], run)
        self._places[turn] = batch.places

    def replay(self, batch: Ragged) -> Tensor:
        """The logits of the batch, for which the arrays were set."""
        self.arrays.send()
        complete(self.arrays.device, batch)
        self._graph.replay()
        return self._logits[: len(batch.parts)]


@dataclass(slots=True)
class DecodeGraphs:
    """Runs decode batches as graphs, captured at first use or before the start, and other batches
    by `otherwise`.

    `launched` is called when an iteration's work on the GPU begins. Batches with a run that reads
    its first tokens once have graphs of their own.
    """

    network: Network
    attention: CudaAttention
    max_len: int
    otherwise: Callable[[Ragged], Tensor]
    launched: Callable[[], None]
    capture_one: Capture
    _captured: dict[tuple[int, int, bool], Captured] = field(default_factory=dict)
    _logits: Tensor = field(init=False)

    def __post_init__(self) -> None:
        vocab_size = self.network.arch.spec.vocab_size
        self._logits = self.network.weights.embedding.new_empty(BUCKETS[-1], vocab_size)

    def forward(self, batch: Ragged) -> Tensor:
        """The logits of the wanted rows."""
        if batch.num_prompts or len(batch.parts) > BUCKETS[-1]:
            return self.otherwise(batch)
        longest = int(batch.positions.max()) + 1
        run = self.attention.run_of(batch)
        captured = self.captured(len(batch.parts), longest, run != NO_RUN)
        captured.fill(batch, run)
        self.launched()
        return captured.replay(batch)

    def captured(self, num_seqs: int, longest: int, shares: bool = False) -> Captured:
        """The graph of the smallest bucket that fits the batch; a run's fits all contexts, since
        the lengths behind its prefix are read on the device.
        """
        longest = max(longest, self.max_len) if shares else longest
        key = bucket(num_seqs), context_bucket(longest, self.max_len), shares
        if key not in self._captured:
            parts = self.network, self.attention, *key, self._logits, self.capture_one
            self._captured[key] = Captured(*parts)
        return self._captured[key]

    def capture(self, max_num_seqs: int, longest: int) -> None:
        """Capture all graphs that batches up to this size may need, largest first, so that memory
        is shared.
        """
        sizes = buckets_up_to(max_num_seqs)[::-1]
        for size in sizes:
            if self.attention.may_share(size, longest):
                self.captured(size, longest, shares=True)
        for context in reversed(contexts_up_to(longest, self.max_len)):
            for size in sizes:
                self.captured(size, context)
