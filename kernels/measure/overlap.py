"""Does computation hide swaps? Measures an iteration whose blocks arrive layer by layer on a separate stream.

`testbed measure overlap` runs the 40 layers of OPT-13B while the blocks of 512 tokens arrive from pinned host memory,
one copy per block as in the 2023 system; a layer waits only for its blocks. It prints, by block size and computed
tokens, the milliseconds of computation alone, of the copies alone, of the host's calls that issue them, and of both
overlapped. It also prints the number of copies that remained when the calls returned, if all copies take equal time:
with more copies than the driver queues, this number is the length of its queue.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from testbed.command_line import Parser
from testbed.core.shapes import read_model
from testbed.kernels.launch.compile import require_gpu
from testbed.kernels.launch.swap import TO_DEVICE
from testbed.kernels.measure.fingerprint import fingerprint
from testbed.kernels.measure.layers import Layers
from testbed.kernels.measure.timing import warm_up

TOKENS = 512
BLOCK_SIZES = (8, 16, 32, 64, 128, 256)
COMPUTED = (32, 256)
REPEATS = 7


@dataclass(frozen=True, slots=True)
class Copies:
    """The copies of TOKENS tokens in blocks of block_size, layer by layer, K and V apart."""

    num_layers: int
    per_layer: int
    size: int  # bytes of one copy
    host: torch.Tensor
    device: torch.Tensor
    stream: torch.cuda.Stream
    events: list[torch.cuda.Event]

    @classmethod
    def of(cls, block_size: int, num_layers: int, token_bytes: int) -> "Copies":
        """token_bytes: K (or V) of a token in one layer."""
        per_layer, size = 2 * (TOKENS // block_size), block_size * token_bytes
        total = num_layers * per_layer * size
        host = torch.zeros(total, dtype=torch.uint8).pin_memory()
        device = torch.empty(total, dtype=torch.uint8, device="cuda")
        events = [torch.cuda.Event() for _ in range(num_layers)]
        return cls(num_layers, per_layer, size, host, device, torch.cuda.Stream(), events)

    def issue(self) -> None:
        """Issue every copy, and an event after the copies of each layer."""
        copy = require_gpu().cuda.runtime.memcpyAsync
        to, source, stream = self.device.data_ptr(), self.host.data_ptr(), self.stream.cuda_stream
        for layer, event in enumerate(self.events):
            for piece in range(layer * self.per_layer, (layer + 1) * self.per_layer):
                copy(to + piece * self.size, source + piece * self.size, self.size, TO_DEVICE, stream)
            event.record(self.stream)


def compute(layers: Layers, x: torch.Tensor, num_layers: int, copies: Copies | None) -> None:
    """All layers without attention; in its place a layer waits for its blocks."""
    attended = x.unflatten(1, (-1, layers.model.head_size))
    for index in range(num_layers):
        weights = layers.layers[index % len(layers.layers)]
        layers.project(x, weights)
        if copies:
            copies.events[index].wait()
        layers.feed_forward(x, attended, weights)


def milliseconds(*calls: Callable[[], object]) -> list[float]:
    """Host time until each call has returned, and finally until the GPU has finished; medians over repeats."""
    samples = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        marks = [time.perf_counter()]
        for call in (*calls, torch.cuda.synchronize):
            call()
            marks.append(time.perf_counter())
        samples.append([1e3 * (mark - marks[0]) for mark in marks[1:]])
    return [float(np.median(column)) for column in zip(*samples, strict=True)]


def main(argv: list[str]) -> None:
    """Print the table."""
    Parser("measure overlap", __doc__).parse_args(argv)
    model = read_model("opt-13b")
    layers, token_bytes = Layers(model, 1), model.num_kv_heads * model.head_size * model.dtype_bytes
    warm_up()
    print(fingerprint())
    print("block_size,computed_tokens,computing_ms,copies_ms,issuing_ms,together_ms,pending")
    for block_size in BLOCK_SIZES:
        copies = Copies.of(block_size, model.num_layers, token_bytes)
        milliseconds(copies.issue)
        issuing_ms, copies_ms = milliseconds(copies.issue)
        pending = round(copies.num_layers * copies.per_layer * (1 - issuing_ms / copies_ms))
        for num_tokens in COMPUTED:
            x = torch.randn(num_tokens, model.hidden_size, dtype=torch.float16, device="cuda")

            def alone(x: torch.Tensor = x) -> None:
                compute(layers, x, model.num_layers, None)

            def waiting(x: torch.Tensor = x, copies: Copies = copies) -> None:
                compute(layers, x, model.num_layers, copies)

            milliseconds(alone)
            computing_ms = milliseconds(alone)[-1]
            overlapped_ms = milliseconds(copies.issue, waiting)[-1]
            times = (computing_ms, copies_ms, issuing_ms, overlapped_ms)
            print(f"{block_size},{num_tokens},{','.join(f'{ms:.2f}' for ms in times)},{pending}", flush=True)
