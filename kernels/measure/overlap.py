"""Does computation hide swaps? Measures an iteration whose blocks arrive layer by layer on a separate stream.

`testbed measure overlap` runs the 40 layers of OPT-13B while the blocks of 512 tokens arrive from pinned host memory,
one copy per block as in the 2023 system; a layer waits only for its blocks. It prints, by block size and computed
tokens, the milliseconds of computation alone, of the copies alone, of the host's calls that issue them, and of both
overlapped. It also prints the number of copies that remained when the calls returned, if all copies take equal time:
with more copies than the driver queues, this number is the length of its queue.
"""

import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from testbed.core.shapes import read_model
from testbed.kernels.measure.layers import Layers
from testbed.kernels.measure.table import Measurement
from testbed.kernels.measure.transfers import copies_of

TOKENS = 512
BLOCK_SIZES = (8, 16, 32, 64, 128, 256)
COMPUTED = (32, 256)
REPEATS = 7


class LayerCopies(NamedTuple):
    """The copies that bring TOKENS tokens in blocks, K and V apart: a call and an event for each layer."""

    calls: list[Callable[[], object]]
    events: list[torch.cuda.Event]
    stream: torch.cuda.Stream

    def issue(self) -> None:
        """Issue every copy, and an event after the copies of each layer."""
        with torch.cuda.stream(self.stream):
            for call, event in zip(self.calls, self.events, strict=True):
                call()
                event.record()


def copies_in(host: torch.Tensor, device: torch.Tensor, num_layers: int, num_copies: int) -> LayerCopies:
    """All bytes of `host` to `device`, in num_copies copies of each layer."""
    size = host.nbytes // (num_layers * num_copies)
    places = [(device.data_ptr() + at, host.data_ptr() + at) for at in range(0, host.nbytes, size)]
    calls = [copies_of(places[first : first + num_copies], size) for first in range(0, len(places), num_copies)]
    return LayerCopies(calls, [torch.cuda.Event() for _ in calls], torch.cuda.Stream())


def compute(layers: Layers, x: torch.Tensor, copies: LayerCopies | None) -> None:
    """All layers without attention; in its place a layer waits for its blocks."""
    attended = x.unflatten(1, (-1, layers.model.head_size))
    for index in range(layers.model.num_layers):
        weights = layers.layers[index % len(layers.layers)]
        layers.project(x, weights)
        if copies:
            copies.events[index].wait()
        layers.feed_forward(x, attended, weights)


def milliseconds(*calls: Callable[[], object]) -> list[float]:
    """Host time until each call has returned, and finally until the GPU has finished; medians after a first run."""
    samples = []
    for _ in range(REPEATS + 1):
        torch.cuda.synchronize()
        marks = [time.perf_counter()]
        for call in (*calls, torch.cuda.synchronize):
            call()
            marks.append(time.perf_counter())
        samples.append([1e3 * (mark - marks[0]) for mark in marks[1:]])
    return [float(np.median(column)) for column in zip(*samples[1:], strict=True)]


def rows(options: Namespace) -> Iterator[tuple[float, ...]]:
    """A row for each block size and number of computed tokens."""
    model = read_model("opt-13b")
    layers = Layers(model, 1)
    host = torch.zeros(TOKENS * model.kv_bytes_per_token, dtype=torch.uint8).pin_memory()
    device = torch.empty_like(host, device="cuda")
    for block_size in BLOCK_SIZES:
        copies = copies_in(host, device, model.num_layers, 2 * (TOKENS // block_size))
        issuing_ms, copies_ms = milliseconds(copies.issue)
        pending = round(model.num_layers * 2 * (TOKENS // block_size) * (1 - issuing_ms / copies_ms))
        for num_tokens in COMPUTED:
            x = torch.randn(num_tokens, model.hidden_size, dtype=torch.float16, device="cuda")
            computing_ms = milliseconds(partial(compute, layers, x, None))[-1]
            together_ms = milliseconds(copies.issue, partial(compute, layers, x, copies))[-1]
            yield block_size, num_tokens, computing_ms, copies_ms, issuing_ms, together_ms, pending


COLUMNS = "block_size,computed_tokens,computing_ms,copies_ms,issuing_ms,together_ms,pending"
MEASUREMENT = Measurement(__doc__, COLUMNS, rows)
