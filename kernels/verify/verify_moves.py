"""Checks of the kernels that only move bytes: exact against their references, other bytes
unchanged.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from testbed.kernels.launch.cache_ops import copy_blocks, swap_fused, swap_per_block, write_cache
from testbed.kernels.verify import reference
from testbed.kernels.verify.reference import NAN_E4M3


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
    _, *new = (
        torch.randn(num_tokens, 3, heads, head_size, device=reference.DEVICE).to(dtype).unbind(1)
    )
    skipped, all_slots = rng.random(num_tokens) < 0.2, rng.permutation(num_slots * heads)
    slots = np.where(skipped, -1, rng.permutation(num_slots)[:num_tokens])
    rows = np.where(
        skipped[:, None], -1, all_slots[: num_tokens * heads].reshape(num_tokens, heads)
    )
    scales = torch.from_numpy(rng.uniform(0.002, 0.05, (2, heads)).astype(np.float32)).to(
        reference.DEVICE
    )

    def written(want: Iterable[Tensor], where: np.ndarray, **options: Any) -> bool:
        got = [
            torch.full_like(cache, NAN_E4M3 if cache.dtype == torch.uint8 else float("nan"))
            for cache in want
        ]
        write_cache(*got, *new, reference.on_device(where), **options)
        return all(map(_same, got, want))

    blocks = torch.full(
        (2, 40, heads, block_size, head_size), float("nan"), dtype=dtype, device=reference.DEVICE
    )
    narrow, pools = (
        torch.full_like(blocks, NAN_E4M3, dtype=torch.uint8),
        torch.full_like(blocks, float("nan")),
    )
    kept, owned = (
        reference.on_device(~skipped),
        reference.on_device(rows[~skipped]),
    )
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
    copy_blocks(
        pool,
        reference.on_device(np.stack([sources, targets], 1).astype(np.int32)),
    )
    return _same(pool, want)


def check_swap(rng: np.random.Generator) -> bool:
    """Swap out by one method and in by the other, through shuffled host blocks and a staging buffer
    of few blocks.
    """
    pool, ids = _random_pool(rng)
    count = int(rng.integers(1, 25))
    host = torch.empty((30, pool.shape[0], *pool.shape[2:]), dtype=pool.dtype, pin_memory=True)
    hosts = rng.permutation(30)[:count]
    if rng.random() < 0.5:
        hosts = np.sort(hosts)
    pairs = list(zip(ids[:count].tolist(), hosts.tolist(), strict=True))
    device_ids = reference.on_device(ids[:count].astype(np.int32))
    staging = torch.empty(
        (5, pool.shape[0], *pool.shape[2:]), dtype=pool.dtype, device=reference.DEVICE
    )
    want, same = pool.clone(), True
    for fused_out in (True, False):
        for to_host in (True, False):
            if not to_host:
                pool[:, device_ids.long()] = NAN_E4M3 if pool.dtype == torch.uint8 else float("nan")
            if fused_out == to_host:
                swap_fused(pool, host, device_ids, pairs, staging, to_host)
            else:
                swap_per_block(pool, host, pairs, to_host)
        torch.cuda.synchronize()
        same &= _same(pool, want)
    return same


def _random_pool(rng: np.random.Generator) -> tuple[Tensor, np.ndarray]:
    heads, block_size, head_size = _size(rng)
    planes, blocks = 2 * int(rng.integers(1, 5)), 30
    pool = torch.randn(planes, blocks, heads, block_size, head_size, device=reference.DEVICE).half()
    if rng.random() < 0.3:
        pool = pool.to(torch.float8_e4m3fn).view(torch.uint8)
    return pool, rng.permutation(blocks)


MOVE_CHECKS: dict[str, Callable[[np.random.Generator], bool]] = {
    "write_cache": check_write,
    "copy_blocks": check_copy,
    "swap (fused and per block)": check_swap,
}
