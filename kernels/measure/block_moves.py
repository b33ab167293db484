"""Transfers of whole blocks of Llama-3-8B's K and V between the GPU and the host, by block size.

`testbed gpu measure block-moves` moves the same tokens in random blocks of 1 to 256 of them: out,
in, and both at once, each by four methods. kernel: the engine's, of few thread blocks. copies: a
cudaMemcpyAsync for each fragment, which is one layer's K or V of a block. batch: one
cudaMemcpyBatchAsync of all fragments. staged: gathered on the GPU (in: scattered), and a copy for
each whole block of the host's. Every result is compared with its source. share is of the rate of
one copy of all bytes in that way; both ways share the sum of the two. decode_slowdown: how many
times as long decode attention takes meanwhile.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from testbed.core.errors import InputError
from testbed.kernels.launch.cache_ops import (
    bind_move_blocks,
    bind_stage_blocks,
    copies_per_fragment,
    issue,
)
from testbed.kernels.launch.host_memory import pinned
from testbed.kernels.measure.timing import Measurement, time_stream, warm_up
from testbed.kernels.measure.transfers import DecodeLoad, Step, batch_of

BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
NUM_PLANES, NUM_HEADS, HEAD_SIZE = 64, 8, 128  # Llama-3-8B in bf16: 2 KiB of a token and plane
POOL_TOKENS, TOKENS = 8192, 256  # of a pool, and of those that move
WAYS = ("out", "in", "both")
REPEATS = 5
FIRST = -1  # before the decodes' thread blocks


class Blocks(NamedTuple):
    """Some blocks of both pools: pairs of their ids, on the GPU and on the host; on_gpu: the pairs
    as kernels read them.
    """

    pool: Tensor
    below: Tensor
    pairs: np.ndarray
    on_gpu: Tensor

    def is_moved(self) -> bool:
        """True if the blocks are the same in both pools."""
        here, there = (torch.from_numpy(ids).long() for ids in self.pairs.T.copy())
        moved = self.pool[:, here.cuda()].transpose(0, 1).cpu()
        return torch.equal(moved.view(torch.int16), self.below[there].view(torch.int16))


def by_kernel(blocks: Blocks, to_host: bool) -> Step:
    """See above."""
    return bind_move_blocks(blocks.pool, blocks.below, blocks.on_gpu, to_host)


def by_copies(blocks: Blocks, to_host: bool) -> Step:
    """See above."""
    pairs = blocks.pairs.tolist()
    return partial(issue, copies_per_fragment(blocks.pool, blocks.below, pairs, to_host))


def by_batch(blocks: Blocks, to_host: bool) -> Step:
    """See above."""
    pairs = blocks.pairs.tolist()
    copies = copies_per_fragment(blocks.pool, blocks.below, pairs, to_host)
    return batch_of([(target, source) for target, source, _ in copies], copies[0][2])


class ByStaging:
    """See above."""

    def __init__(self, blocks: Blocks, to_host: bool) -> None:
        pool, below, hosts = blocks.pool, blocks.below, blocks.pairs[:, 1].tolist()
        self.staging = pool.new_empty((len(hosts), *below.shape[1:]))
        self.ids = blocks.on_gpu[:, 0].contiguous()
        size = below[0].nbytes
        near, far = self.staging.data_ptr(), below.data_ptr()
        ends = [(near + at * size, far + there * size) for at, there in enumerate(hosts)]
        copies = [(t, n, size) if to_host else (n, t, size) for n, t in ends]
        steps: list[Step] = [
            bind_stage_blocks(pool, self.staging, self.ids, to_host),
            partial(issue, copies),
        ]
        self.steps = steps if to_host else steps[::-1]

    def __call__(self, stream: int) -> None:
        for step in self.steps:
            step(stream)


METHODS: dict[str, Callable[[Blocks, bool], Step]] = {
    "kernel": by_kernel,
    "copies": by_copies,
    "batch": by_batch,
    "staged": ByStaging,
}


class Pools:
    """Both pools in blocks of a size, and the bytes that move one way."""

    def __init__(self, block_size: int) -> None:
        shape = NUM_HEADS, block_size, HEAD_SIZE
        num_blocks = POOL_TOKENS // block_size
        self.pool = torch.randn((NUM_PLANES, num_blocks, *shape), device="cuda").bfloat16()
        self.below = pinned((num_blocks, NUM_PLANES, *shape), torch.bfloat16)
        self.below.copy_(self.pool.transpose(0, 1))
        rng = np.random.default_rng(block_size)
        ids = np.stack([rng.permutation(num_blocks), rng.permutation(num_blocks)], 1)
        count = TOKENS // block_size
        parts = ids[:count].astype(np.int32), ids[count : 2 * count].astype(np.int32)
        self._ids = [(part, torch.from_numpy(part).cuda()) for part in parts]
        self.num_bytes = count * self.below[0].nbytes

    def blocks(self, place: int) -> Blocks:
        """Some blocks; those of place 0 and of place 1 are others."""
        return Blocks(self.pool, self.below, *self._ids[place])


class Transfer:
    """A transfer on the current stream and, both ways, another one."""

    def __init__(self, method: str, way: str, pools: Pools) -> None:
        places = [(0, way != "in"), (1, False)][: 2 if way == "both" else 1]
        self.parts = [(pools.blocks(place), to_host) for place, to_host in places]
        self.steps = [METHODS[method](*part) for part in self.parts]
        self.other = torch.cuda.Stream(priority=FIRST)

    def __call__(self) -> None:
        current = torch.cuda.current_stream()
        self.other.wait_stream(current)
        streams = current.cuda_stream, self.other.cuda_stream
        for step, stream in zip(self.steps, streams, strict=False):
            step(stream)
        current.wait_stream(self.other)

    def check(self) -> None:
        """Raise InputError if it moves wrong bytes."""
        self.parts[0][0].below.view(torch.int16).add_(1)  # the pools differ
        self()
        torch.cuda.synchronize()
        if not all(blocks.is_moved() for blocks, _ in self.parts):
            raise InputError(key="a transfer", problem="moved wrong bytes; nothing was kept")


def link_rates(num_bytes: int) -> dict[str, float]:
    """Bytes/s of one copy of all bytes by way; both: their sum."""
    near = torch.empty(num_bytes, dtype=torch.uint8, device="cuda")
    far = pinned((num_bytes,), torch.uint8)
    ends = {"out": (far, near), "in": (near, far)}

    def copy(way: str) -> None:
        ends[way][0].copy_(ends[way][1], non_blocking=True)

    rates = {w: num_bytes / time_stream(partial(copy, w), 7).median_us * 1e6 for w in ends}
    return rates | {"both": sum(rates.values())}


def rows(block_sizes: tuple[int, ...] = BLOCK_SIZES) -> Iterator[tuple[str | float, ...]]:
    """A row for each block size, way and method."""
    warm_up()
    load, stream = DecodeLoad(), torch.cuda.Stream(priority=FIRST)
    for block_size in block_sizes:
        pools = Pools(block_size)
        links = link_rates(pools.num_bytes)
        for way, method in product(WAYS, METHODS):
            call = Transfer(method, way, pools)
            with torch.cuda.stream(stream):
                call.check()
                alone = time_stream(call, REPEATS)
            during_us, slowdown = load.during(call, alone.median_us, stream)
            num_bytes = pools.num_bytes * (2 if way == "both" else 1)
            rate = num_bytes / alone.median_us * 1e6
            size = block_size, NUM_HEADS * HEAD_SIZE * block_size * 2
            shares = round(rate / 1e9, 2), round(rate / links[way], 3)
            yield (
                *size,
                way,
                method,
                *shares,
                round(num_bytes / during_us / 1e3, 2),
                round(slowdown, 3),
            )


COLUMNS = "block_size,fragment_bytes,way,method,gb_s,share,during_decode_gb_s,decode_slowdown"
MEASUREMENT = Measurement(COLUMNS, rows)
