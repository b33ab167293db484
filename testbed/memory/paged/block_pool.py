"""Block ids: their reference counts, and the free list."""

from collections.abc import Sequence
from itertools import filterfalse
from typing import ClassVar


class BlockPool:
    """num_blocks blocks; `take` pops from the end of `free`, at first the lowest id.

    `sharers` maps every block with a reference count above 1 to its count; any other taken block
    has a count of 1. Most workloads share little, so most calls change no count. num_saved is the
    number of blocks that sharing saves. has_other_blocks: a subclass may have blocks besides free
    and held ones; were_cached says which of those that the last `evict` has freed stored something.
    """

    __slots__ = ("free", "num_blocks", "num_saved", "sharers", "were_cached")

    has_other_blocks: ClassVar[bool] = False

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.free = list(range(num_blocks - 1, -1, -1))
        self.sharers: dict[int, int] = {}
        self.num_saved = 0
        self.were_cached: list[bool] = []

    def available(self) -> int:
        """Blocks that are free or can be evicted."""
        return len(self.free)

    def counts(self) -> tuple[int, int, int]:
        """The number of blocks that are free, can be evicted, are in transit."""
        return len(self.free), 0, 0

    def evictable(self) -> list[int]:
        """Blocks that no table has, but that store something until they are evicted."""
        return []

    def in_transit(self) -> list[int]:
        """Blocks of no table that are neither free nor can be evicted, until a transfer lands."""
        return []

    def evict(self, count: int) -> None:
        """Free `count` evictable blocks, which must be there; they are taken after those that were
        free before.
        """

    def take(self, count: int) -> list[int]:
        """Take `count` free blocks; the caller ensures that there are as many."""
        if not count:
            return []
        blocks = self.free[: -count - 1 : -1]
        del self.free[-count:]
        return blocks

    def share(self, blocks: Sequence[int]) -> None:
        """One table more has each of these blocks."""
        sharers = self.sharers
        for block in blocks:
            sharers[block] = sharers.get(block, 1) + 1
        self.num_saved += len(blocks)

    def put(self, blocks: list[int]) -> int:
        """Decrement the reference count of each block; returns how many became free (`take` pops
        the last first).
        """
        if self.sharers:
            blocks = self.unshared(blocks)
        if blocks:
            self._unheld(blocks)
        return len(blocks)

    def put_one(self, block: int) -> bool:
        """`put` of one block; returns whether it became free."""
        if self.drop(block):
            return False
        self._unheld([block])
        return True

    def drop(self, block: int) -> bool:
        """Decrement the reference count of a shared block; False, without a change, if the count
        is 1.
        """
        count = self.sharers.get(block)
        if count is None:
            return False
        if count == 2:
            del self.sharers[block]
        else:
            self.sharers[block] = count - 1
        self.num_saved -= 1
        return True

    def unshared(self, blocks: list[int]) -> list[int]:
        """`drop` each of the blocks; returns those whose count is 1, which have not changed."""
        sharers = self.sharers
        unshared = [*filterfalse(sharers.__contains__, blocks)]
        for block in filter(sharers.__contains__, blocks):
            count = sharers[block] - 1
            if count > 1:
                sharers[block] = count
            else:
                del sharers[block]
        self.num_saved -= len(blocks) - len(unshared)
        return unshared

    def ref_count(self, block: int) -> int:
        return self.sharers.get(block, 1)

    def _unheld(self, blocks: list[int]) -> None:
        """No table has these blocks any more."""
        self.free.extend(blocks)
