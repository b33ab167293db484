"""Hits of an LRU prefix cache at many sizes, in one pass over a trace.

A cache of any size holds the top of one stack, in which the block used last lies first (Mattson et
al., Evaluation techniques for storage hierarchies, 1970). The rules are those of `PrefixCaching`
that serves one prompt at a time without a watermark, which make the depth of that top vary:

- a prompt occupies all its blocks at once, and what others left keeps the rest of the cache;
- the block with a prompt's last token is computed again though it may be cached, so that two blocks
  have its content until the older one is freed;
- a partial last block is freed when the prompt ends;
- a prompt with more blocks than the cache is refused and changes nothing.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from testbed.memory.prefix_cache.curves.accesses import Access, accesses_of
from testbed.memory.prefix_cache.replay import Prompt

Counts = NDArray[np.int64]


def lru_hits(prompts: Sequence[Prompt], sizes: Sequence[int]) -> list[int]:
    """Blocks that all prompts together find in an LRU cache of each of these sizes (blocks).

    Sizes that refuse the same prompts share one pass.
    """
    hits: dict[int, int] = {}
    for served, group in groups_of_sizes(prompts, sizes):
        hits_of_group = _one_pass(accesses_of(served), np.array(group, np.int64))
        hits |= zip(group, hits_of_group.tolist(), strict=True)
    return [hits[size] for size in sizes]


def groups_of_sizes(
    prompts: Sequence[Prompt], sizes: Iterable[int]
) -> list[tuple[list[Prompt], list[int]]]:
    """The sizes that admit the same prompts, with these prompts."""
    lengths = np.sort([prompt.num_blocks for prompt in prompts])
    groups: dict[int, list[int]] = {}
    for size in sorted(set(sizes)):
        groups.setdefault(int(np.searchsorted(lengths, size, side="right")), []).append(size)
    return [
        ([prompt for prompt in prompts if prompt.num_blocks <= group[0]], group)
        for group in groups.values()
    ]


def _one_pass(accesses: Sequence[Access], sizes: Counts) -> Counts:
    """Hits in blocks by size; every prompt fits into every size."""
    stack = _Stack(len(accesses))
    stored, hits = np.zeros_like(sizes), np.zeros_like(sizes)
    for time, access in enumerate(accesses):
        num_found, copied = _found(access, stack, stored)
        hits += num_found
        others = sizes - access.num_blocks
        keeps_copy = copied & (stack.end - access.num_readable <= others)
        stored = access.num_full + np.minimum(stored - num_found, others) - keeps_copy
        stack.use(time, access)
    return hits


def _found(access: Access, stack: "_Stack", stored: Counts) -> tuple[Counts, NDArray[np.bool_]]:
    """Blocks found by size, and whether the cache has the block with the last token too; then
    `stack.end` is the depth of the access's last known block.
    """
    cached = np.zeros_like(stored)
    for run in access.runs:
        above = stack.above(run.since)
        cached += np.clip(stored - above, 0, run.num_blocks)
        stack.end = above + run.num_blocks
    return np.minimum(cached, access.num_readable), cached > access.num_readable


class _Stack:
    """The number of blocks above those that a prompt used last, by a Fenwick tree over prompts.

    end: the depth of the last block that was looked up, counted from 1.
    """

    def __init__(self, num_prompts: int) -> None:
        self._tree = [0] * (num_prompts + 1)
        self._num_blocks = 0
        self.end = 0

    def above(self, time: int) -> int:
        """Blocks that were used last by prompts after the prompt number `time`."""
        upto, i = 0, time + 1
        while i:
            upto += self._tree[i]
            i &= i - 1
        return self._num_blocks - upto

    def use(self, time: int, access: Access) -> None:
        """The prompt's full blocks move to the top."""
        for run in access.runs:
            self._add(run.since, -run.num_blocks)
        self._add(time, access.num_full)

    def _add(self, time: int, num_blocks: int) -> None:
        self._num_blocks += num_blocks
        i = time + 1
        while i < len(self._tree):
            self._tree[i] += num_blocks
            i += i & -i
