"""Checks of the kernels that only move bytes: exact against their references, other bytes
unchanged.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from testbed.kernels.launch.cache_ops import (
    copy_blocks,
    move_blocks,
    stage_blocks,
    swap_per_block,
    unload_blocks,
    write_cache,
)
from testbed.kernels.launch.host_memory import pinned
from testbed.kernels.verify import reference
from testbed.kernels.verify.reference import DEVICE, NAN_E4M3, on_device


def _same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.view(torch.int16), b.view(torch.int16))


def _size(rng: np.random.Generator) -> tuple[int, int, int]:
    return (
        int(rng.integers(1, 9)),
        int(rng.choice([1, 2, 5, 16, 64])),
        int(rng.choice([64, 80, 128, 256])),
    )


def check_write(rng: np.random.Generator) -> bool:
    """Fused reshape and write of strided K and V, some tokens skipped, to blocks in all forms and
    to rows.
    """
    heads, block_size, head_size = _size(rng)
    num_slots, num_tokens = 40 * block_size, int(rng.integers(1, 41))
    dtype = torch.float16 if rng.random() < 0.5 else torch.bfloat16
    _, *new = torch.randn(num_tokens, 3, heads, head_size, device=DEVICE).to(dtype).unbind(1)
    skipped, all_slots = rng.random(num_tokens) < 0.2, rng.permutation(num_slots * heads)
    slots = np.where(skipped, -1, rng.permutation(num_slots)[:num_tokens])
    rows = np.where(
        skipped[:, None], -1, all_slots[: num_tokens * heads].reshape(num_tokens, heads)
    )
    scales = on_device(rng.uniform(0.002, 0.05, (2, heads)).astype(np.float32))

    def written(want: Iterable[Tensor], where: np.ndarray, **options: Any) -> bool:
        got = [
            torch.full_like(cache, NAN_E4M3 if cache.dtype == torch.uint8 else float("nan"))
            for cache in want
        ]
        write_cache(*got, *new, on_device(where), **options)
        return all(map(_same, got, want))

    size = (2, 40, heads, block_size, head_size)
    blocks = torch.full(size, float("nan"), dtype=dtype, device=DEVICE)
    narrow = torch.full_like(blocks, NAN_E4M3, dtype=torch.uint8)
    pools = torch.full_like(blocks, float("nan"))
    kept, owned = on_device(~skipped), on_device(rows[~skipped])
    for i, x in enumerate(new):
        reference.write_cache(blocks[i], x, slots.tolist())
        reference.write_cache(narrow[i], reference.quantized(x, scales[i]), slots.tolist())
        pools[i].view(-1, head_size)[owned] = x[kept]
    same = written(blocks, slots) and written(
        reference.paper_layout(*blocks), slots, paper_layout=True
    )
    same = same and written(pools.view(2, num_slots, heads, head_size), rows)
    return same and (head_size == 80 or written(narrow, slots, kv_scales=scales))


def check_copy(rng: np.random.Generator) -> bool:
    """Fused block copy over all planes; every other block unchanged."""
    pool, ids = _random_pool(rng)
    count = int(rng.integers(1, 12))
    sources, targets = rng.choice(ids[:15], count), ids[15 : 15 + count]
    want = pool.clone()
    want[:, targets.tolist()] = pool[:, sources.tolist()]
    copy_blocks(pool, on_device(np.stack([sources, targets], 1).astype(np.int32)))
    return _same(pool, want)


def check_swap(rng: np.random.Generator) -> bool:
    """Swap out by one method and in by the other, through shuffled host blocks."""
    pool, ids = _random_pool(rng)
    count = int(rng.integers(1, 25))
    host, pairs = _host_pool(rng, pool, ids[:count])
    on_gpu, want, same = on_device(pairs), pool.clone(), True
    for kernel_out in (True, False):
        for to_host in (True, False):
            if not to_host:
                _erase(pool, ids[:count])
            if kernel_out == to_host:
                move_blocks(pool, host, on_gpu, to_host)
            else:
                swap_per_block(pool, host, pairs.tolist(), to_host)
        if DEVICE != "cpu":
            torch.cuda.synchronize()
        same &= _same(pool, want)
    return same


def check_unload(rng: np.random.Generator) -> bool:
    """Swap out through a staging buffer; the blocks in the host's pool are those of the GPU, and
    the others unchanged.
    """
    pool, ids = _random_pool(rng)
    count = int(rng.integers(1, 25))
    host, pairs = _host_pool(rng, pool, ids[:count])
    want = host.clone()
    want[pairs[:, 1].tolist()] = pool[:, pairs[:, 0].tolist()].transpose(0, 1).to("cpu")
    on_gpu = on_device(pairs)
    staging = pool.new_empty((count, pool.shape[0], *pool.shape[2:]))
    stage_blocks(pool, staging, on_gpu[:, 0].contiguous(), True)
    unload_blocks(staging, host, on_gpu)
    if DEVICE != "cpu":
        torch.cuda.synchronize()
    return _same(host, want)


def _host_pool(
    rng: np.random.Generator, pool: Tensor, ids: np.ndarray
) -> tuple[Tensor, np.ndarray]:
    """A pool of 30 blocks on the host, and pairs of these blocks of `pool` with blocks of it."""
    host = pinned((30, pool.shape[0], *pool.shape[2:]), pool.dtype)
    host.view(torch.uint8).random_()
    hosts = rng.permutation(30)[: len(ids)]
    return host, np.stack([ids, hosts], 1).astype(np.int32)


def _erase(pool: Tensor, ids: np.ndarray) -> None:
    pool[:, ids.tolist()] = NAN_E4M3 if pool.dtype == torch.uint8 else float("nan")


def _random_pool(rng: np.random.Generator) -> tuple[Tensor, np.ndarray]:
    heads, block_size, head_size = _size(rng)
    planes, blocks = 2 * int(rng.integers(1, 5)), 30
    pool = torch.randn(planes, blocks, heads, block_size, head_size, device=DEVICE).half()
    if rng.random() < 0.3:
        pool = pool.to(torch.float8_e4m3fn).view(torch.uint8)
    return pool, rng.permutation(blocks)


MOVE_CHECKS: dict[str, Callable[[np.random.Generator], bool]] = {
    "write_cache": check_write,
    "copy_blocks": check_copy,
    "swap (by the kernel and per block)": check_swap,
    "swap out through a staging buffer": check_unload,
}
