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


def _empty_like(cache: Tensor) -> Tensor:
    """A cache whose every value is NaN, so that what is not written is seen."""
    return torch.full_like(cache, NAN_E4M3 if cache.dtype == torch.uint8 else float("nan"))


class Writes:
    """K and V of some tokens at random, strided, and where they go: a slot each, or a row of a pool
    for each head; -1 for those that are skipped.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self.heads, self.block_size, self.head_size = _size(rng)
        self.num_slots, num_tokens = 40 * self.block_size, int(rng.integers(1, 41))
        self.dtype = torch.float16 if rng.random() < 0.5 else torch.bfloat16
        values = torch.randn(num_tokens, 3, self.heads, self.head_size, device=reference.DEVICE)
        _, *self.new = values.to(self.dtype).unbind(1)
        self.skipped = rng.random(num_tokens) < 0.2
        rows = rng.permutation(self.num_slots * self.heads)[: num_tokens * self.heads]
        self.slots = np.where(self.skipped, -1, rng.permutation(self.num_slots)[:num_tokens])
        self.rows = np.where(self.skipped[:, None], -1, rows.reshape(num_tokens, self.heads))
        scales = rng.uniform(0.002, 0.05, (2, self.heads)).astype(np.float32)
        self.scales = torch.from_numpy(scales).to(reference.DEVICE)

    def in_blocks(self) -> Tensor:
        """By the reference, [2, num_blocks, heads, block_size, head_size]."""
        shape = (2, 40, self.heads, self.block_size, self.head_size)
        blocks = torch.full(shape, float("nan"), dtype=self.dtype, device=reference.DEVICE)
        for cache, values in zip(blocks, self.new, strict=True):
            reference.write_cache(cache, values, self.slots.tolist())
        return blocks

    def in_narrow_blocks(self) -> Tensor:
        """The same in e4m3, by the scales."""
        blocks = torch.full_like(self.in_blocks(), NAN_E4M3, dtype=torch.uint8)
        for cache, values, scale in zip(blocks, self.new, self.scales, strict=True):
            reference.write_cache(cache, reference.quantized(values, scale), self.slots.tolist())
        return blocks

    def in_rows(self) -> Tensor:
        """By the reference, [2, num_slots, heads, head_size]."""
        pools = _empty_like(self.in_blocks())
        kept = reference.on_device(~self.skipped)
        owned = reference.on_device(self.rows[~self.skipped])
        for pool, values in zip(pools, self.new, strict=True):
            pool.view(-1, self.head_size)[owned] = values[kept]
        return pools.view(2, self.num_slots, self.heads, self.head_size)

    def are_written(self, want: Iterable[Tensor], where: np.ndarray, **options: Any) -> bool:
        """Whether the kernel writes what the reference does, and nothing else."""
        got = [_empty_like(cache) for cache in want]
        write_cache(*got, *self.new, reference.on_device(where), **options)
        return all(map(_same, got, want))


def check_write(rng: np.random.Generator) -> bool:
    """Fused reshape and write of strided K and V, some tokens skipped, to blocks in all forms and
    to rows.
    """
    writes = Writes(rng)
    blocks = writes.in_blocks()
    of_paper = reference.paper_layout(*blocks)
    return (
        writes.are_written(blocks, writes.slots)
        and writes.are_written(of_paper, writes.slots, paper_layout=True)
        and writes.are_written(writes.in_rows(), writes.rows)
        and (
            writes.head_size == 80  # which no kernel has in e4m3
            or writes.are_written(writes.in_narrow_blocks(), writes.slots, kv_scales=writes.scales)
        )
    )


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
