"""The sweeps of `gpu calibrate`, one function per section of a profile. Every point ends in median,
low, high (us).
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from statistics import NormalDist
from typing import Any

import numpy as np
import torch

from testbed.kernels.launch.cache_ops import copy_blocks, move_blocks, swap_per_block, write_cache
from testbed.kernels.measure.bench_inputs import Calls, DecodeInputs, Pools, PrefillInputs
from testbed.kernels.measure.timing import Timing, time_graph, time_stream
from testbed.kernels.verify.reference import Shape

Point = list[float | int | str]
TOKENS = (
    1,
    2,
    4,
    8,
    16,
    24,
    32,
    48,
    64,
    80,
    96,
    112,
    128,
    160,
    192,
    224,
    256,
    320,
    384,
    448,
    512,
    640,
    768,
    896,
    1024,
    1280,
    1536,
    1792,
    2048,
    2560,
    3072,
    4096,
)
# Every token count of a decode batch, because the library's choice of matrix kernel changes times
# by up to 25%.
LINEAR_TOKENS = sorted({*TOKENS, *range(1, 258), *range(288, 513, 32)})
HEAD_ROWS = [count for count in TOKENS if count <= 512]
NUM_SEQS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256)
CONTEXTS = (16, 64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192, 16384)
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
NEW_TOKENS = (1, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
PAST_TOKENS = (0, 128, 512, 1024, 2048, 4096)
REPLAYS = 7
MIXED_NEW, MIXED_PAST = (16, 64, 256, 512, 1024, 2048), (0, 512, 2048)
MIXED_SEQS, MIXED_CONTEXTS = (1, 8, 32, 64, 128, 256), (64, 512, 2048)
MIXED_TOKENS = 1 << 18  # context tokens summed over all decodes


def point(*key: float | int | str, timing: Timing) -> Point:
    """One measured point."""
    return [*key, *(round(us, 3) for us in timing)]


def ragged_lens(num_seqs: int, mean: int, longest: int) -> list[int]:
    """Log-normal quantiles (sigma 0.8, near the spread of ShareGPT contexts in flight) with that
    mean, shuffled.
    """
    rng = np.random.default_rng(num_seqs * 100_003 + mean)
    quantiles = np.array([NormalDist().inv_cdf((i + 0.5) / num_seqs) for i in range(num_seqs)])
    shape, scale = np.exp(0.8 * quantiles), float(mean)
    for _ in range(50):
        lens = np.round(shape * scale).clip(1, longest)
        scale *= mean / lens.mean()
    return [int(x) for x in rng.permutation(lens)]


def swept(
    counts: Sequence[int], calls: Callable[[int], Calls], *key: float | int | str
) -> list[Point]:
    """A point for each count, whose calls are timed as a graph, after the values that all points
    begin with.

    Largest first: the clocks settle some 100 ms after a change of load, which changes small counts
    by up to 10%.
    """
    return sorted(
        point(*key, n, timing=time_graph(calls(n), REPLAYS)) for n in sorted(counts, reverse=True)
    )


def decode_grid(pools: Pools, shape: Shape, max_len: int, coarse: bool) -> list[tuple[int, int]]:
    """Numbers of sequences and mean contexts that fit the pool."""
    seqs = (*NUM_SEQS[::3], 256) if coarse else NUM_SEQS
    means = [
        m for m in CONTEXTS if m <= max_len and not (coarse and m in (384, 768, 1536, 4096, 16384))
    ]
    capacity = pools.blocks(shape) * shape.block_size // 2
    return [
        (n, mean)
        for n, mean in product(seqs, means)
        if n * (mean + shape.block_size) <= capacity and n * mean <= 1 << 19
    ]


def decode_attention(
    pools: Pools, shape: Shape, max_len: int, spread: str, kernel: str
) -> list[Point]:
    """One layer's decode attention: block size, spread, sequences, mean context."""
    points = []
    for n, mean in decode_grid(
        pools, shape, max_len, coarse=(shape.block_size, kernel) != (16, "paged")
    ):
        lens = ragged_lens(n, mean, max_len) if spread == "ragged" else [mean] * n
        inputs = DecodeInputs(pools, shape, lens)
        calls = {"paged": inputs.paged, "paper": inputs.paper, "contiguous": inputs.contiguous}[
            kernel
        ]()
        points.append(
            point(shape.block_size, spread, n, sum(lens), timing=time_graph(calls, REPLAYS))
        )
    return points


def prefill_attention(pools: Pools, shape: Shape, max_len: int) -> list[Point]:
    """One layer's prefill attention: sequences (one, and enough to fill the GPU), new and past
    tokens each.
    """
    points = []
    for new in NEW_TOKENS:
        for past in PAST_TOKENS:
            if new + past > max_len:
                continue
            many = int(min(64, max(2, 8192 // new)))
            for count in (1, many):
                inputs = PrefillInputs(pools, shape, [new] * count, [past] * count)
                points.append(
                    point(count, new, past, timing=time_graph(inputs.paged(), REPLAYS, 800.0))
                )
    return points


def mixed_attention(prompts: Pools, decodes: Pools, shape: Shape, max_len: int) -> list[Point]:
    """One layer: a prompt's chunk after its past, with decodes of ragged lengths; num_seqs 0 is the
    prompt alone.

    Prompts and decodes have separate pools, so that neither finds the other's K and V in the L2
    cache.
    """
    points = []
    for new, past in product(MIXED_NEW, MIXED_PAST):
        if new + past > max_len:
            continue
        prefill = PrefillInputs(prompts, shape, [new], [past]).paged()
        points.append(point(new, past, 0, 0, timing=time_graph(prefill, REPLAYS, 800.0)))
        for num_seqs, mean in product(MIXED_SEQS, MIXED_CONTEXTS):
            if mean >= max_len or num_seqs * mean > MIXED_TOKENS:
                continue
            batch = DecodeInputs(decodes, shape, ragged_lens(num_seqs, mean, max_len)).paged()
            both = time_graph(combined(prefill, batch), REPLAYS, 800.0)
            points.append(point(new, past, num_seqs, mean, timing=both))
    return points


def combined(prefill: Calls, decode: Calls) -> Calls:
    """A layer's two kernels in sequence as one call; the shorter list of layers repeats."""

    def both(i: int) -> None:
        prefill[i % len(prefill)]()
        decode[i % len(decode)]()

    return [partial(both, i) for i in range(max(len(prefill), len(decode)))]


def cache_write(pools: Pools, shape: Shape) -> list[Point]:
    """One layer's cache write, by tokens."""
    num_slots, rng = 1 << 14, np.random.default_rng(0)
    k_cache, v_cache = pools.caches(1, num_slots // shape.block_size, shape)

    def calls(count: int) -> Calls:
        size = (8, 2, count, shape.num_kv_heads, shape.head_size)
        new = torch.randn(size, dtype=shape.dtype, device="cuda")
        slots = torch.from_numpy(
            np.stack([rng.permutation(num_slots)[:count] for _ in range(8)])
        ).cuda()
        return [partial(write_cache, k_cache[0], v_cache[0], *new[i], slots[i]) for i in range(8)]

    return swept(TOKENS, calls)


def block_copy(pool: torch.Tensor) -> list[Point]:
    """Fused copy over all layers: block size, blocks."""
    rng, num_blocks = np.random.default_rng(0), pool.shape[1]

    def calls(count: int) -> Calls:
        ids = torch.from_numpy(
            rng.permutation(num_blocks)[: 2 * count].reshape(-1, 2).astype(np.int32)
        ).cuda()
        return [partial(copy_blocks, pool, ids)]

    return swept([n for n in (1, 2, 4, 8, 16, 32, 64) if 2 * n <= num_blocks], calls, pool.shape[3])


def swap(pool: torch.Tensor, host: torch.Tensor, counts: Sequence[int]) -> list[Point]:
    """All layers of some blocks to the host and back: method, direction, block size, blocks."""
    points, rng = [], np.random.default_rng(0)
    for count in counts:
        ids = rng.permutation(pool.shape[1])[:count]
        pairs = np.stack([ids, rng.permutation(host.shape[0])[:count]], 1).astype(np.int32)
        on_gpu = torch.from_numpy(pairs).cuda()
        for direction, out in (("out", True), ("in", False)):
            run: dict[str, Callable[[], Any]] = {
                "per block": partial(swap_per_block, pool, host, pairs.tolist(), out),
                "fused": partial(move_blocks, pool, host, on_gpu, out),
            }
            for method, call in run.items():
                points.append(
                    point(method, direction, pool.shape[3], count, timing=time_stream(call, 3))
                )
    return points


def overheads() -> list[Point]:
    """A kernel inside a graph, a launch from the host, and a graph iteration with transfers of
    inputs and outputs.
    """
    x = torch.zeros(32, device="cuda")
    tokens, host = (
        torch.zeros(256, dtype=torch.int64, device="cuda"),
        torch.zeros(256, dtype=torch.int64).pin_memory(),
    )
    graph = torch.cuda.CUDAGraph()
    x.add_(1)
    with torch.cuda.graph(graph):
        x.add_(1)

    def iteration() -> None:
        tokens.copy_(host, non_blocking=True)
        graph.replay()
        host.copy_(tokens, non_blocking=True)
        torch.cuda.synchronize()

    return [
        point("graph_kernel", timing=time_graph([lambda: x.add_(1)] * 64)),
        point("stream_launch", timing=_wall(lambda: x.add_(1), num_samples=10, repeats=2000)),
        point("iteration", timing=_wall(iteration, num_samples=50, repeats=1)),
    ]


def _wall(call: Callable[[], object], num_samples: int, repeats: int) -> Timing:
    samples = []
    for _ in range(num_samples):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        torch.cuda.synchronize()
        samples.append((time.perf_counter() - start) / repeats * 1e6)
    return Timing.of(samples)
