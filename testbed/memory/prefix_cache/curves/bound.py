"""The most blocks that any eviction order finds: Belady's bound under the rules of PrefixCaching.

A block that is found was kept from its last use to this one. While a prompt is served it occupies
all its blocks, so that of the blocks kept across it only the rest of the cache remains. If they are
too many, giving up those that are needed last loses the fewest hits; this is the greedy choice for
intervals of equal worth, and it is optimal though the room differs from prompt to prompt. A block
is needed no later than the blocks behind it, so the choice leaves no block without its
predecessors, and a policy could make it.
"""

import heapq
from collections.abc import Sequence

from testbed.memory.prefix_cache.curves.accesses import Access, accesses_of
from testbed.memory.prefix_cache.curves.stack_distances import groups_of_sizes
from testbed.memory.prefix_cache.replay import Prompt


def most_hits(prompts: Sequence[Prompt], sizes: Sequence[int]) -> list[int]:
    """The bound of the blocks found by all prompts together, for each of these sizes (blocks)."""
    bounds: dict[int, int] = {}
    for served, group in groups_of_sizes(prompts, sizes):
        accesses = accesses_of(served)
        needs = _needs(accesses)
        bounds |= {size: _bound_at(accesses, needs, size) for size in group}
    return [bounds[size] for size in sizes]


def _needs(accesses: Sequence[Access]) -> list[list[tuple[int, int]]]:
    """For each prompt: (a later prompt, how many blocks that finds which this one used last)."""
    needs: list[list[tuple[int, int]]] = [[] for _ in accesses]
    for time, access in enumerate(accesses):
        readable = access.num_readable
        for run in access.runs:
            num_blocks = min(run.num_blocks, readable)
            readable -= num_blocks
            if num_blocks:
                needs[run.since].append((time, num_blocks))
    return needs


def _bound_at(accesses: Sequence[Access], needs: list[list[tuple[int, int]]], size: int) -> int:
    """The bound for one cache size, into which every prompt fits."""
    kept, hits = _Kept(), 0
    for time, access in enumerate(accesses):
        hits += kept.use(time)
        kept.give_up(kept.num_blocks - (size - access.num_blocks))
        for needed_at, num_blocks in needs[time]:
            kept.add(needed_at, num_blocks)
    return hits


class _Kept:
    """The blocks that are kept for later prompts, by the prompt that needs them next."""

    def __init__(self) -> None:
        self.num_blocks = 0
        self._needed_at: dict[int, int] = {}
        self._furthest: list[int] = []  # a heap of negative prompt numbers

    def use(self, time: int) -> int:
        """Use the blocks kept for prompt number `time`, and return their number."""
        num_found = self._needed_at.pop(time, 0)
        self.num_blocks -= num_found
        return num_found

    def add(self, time: int, num_blocks: int) -> None:
        if time not in self._needed_at:
            heapq.heappush(self._furthest, -time)
        self._needed_at[time] = self._needed_at.get(time, 0) + num_blocks
        self.num_blocks += num_blocks

    def give_up(self, num_blocks: int) -> None:
        """Stop keeping this many blocks, first those that are needed last."""
        while num_blocks > 0:
            time = -self._furthest[0]
            given_up = min(num_blocks, self._needed_at[time])
            self._needed_at[time] -= given_up
            self.num_blocks -= given_up
            num_blocks -= given_up
            if not self._needed_at[time]:
                del self._needed_at[time]
                heapq.heappop(self._furthest)
