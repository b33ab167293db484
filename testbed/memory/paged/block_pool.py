"""Block ids, how many sequences hold each, and which are free."""

from collections.abc import Iterable


class BlockPool:
    """num_blocks blocks; the last of `free` is taken next, by default the lowest id first.

    `sharers` holds the reference count of every block that more than one sequence holds; any other taken block has
    one holder. Most workloads share little, so taking and freeing need not touch a count. num_saved is the number of
    blocks that sharing saves.
    """

    __slots__ = ("free", "num_blocks", "num_saved", "sharers")

    def __init__(self, num_blocks: int, order: Iterable[int] | None = None) -> None:
        self.num_blocks = num_blocks
        taken_last = range(num_blocks) if order is None else order
        self.free = list(taken_last)[::-1]
        self.sharers: dict[int, int] = {}
        self.num_saved = 0

    def take(self, count: int) -> list[int]:
        """`count` free blocks, which must be there, in the order in which they are handed out."""
        if not count:
            return []
        blocks = self.free[: -count - 1 : -1]
        del self.free[-count:]
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """One more sequence holds each of these blocks."""
        for block in blocks:
            self.sharers[block] = self.sharers.get(block, 1) + 1
            self.num_saved += 1

    def put(self, blocks: list[int]) -> int:
        """One sequence fewer holds each of these blocks; returns how many became free (the last one of them first)."""
        if not self.sharers:
            self.free.extend(blocks)
            return len(blocks)
        unshared = [block for block in blocks if not self.drop(block)]
        self.free.extend(unshared)
        return len(unshared)

    def drop(self, block: int) -> bool:
        """Take one holder from a shared block; False where it was the only one."""
        count = self.sharers.get(block, 1)
        if count == 1:
            return False
        if count == 2:
            del self.sharers[block]
        else:
            self.sharers[block] = count - 1
        self.num_saved -= 1
        return True

    def ref_count(self, block: int) -> int:
        """Sequences that hold a taken block."""
        return self.sharers.get(block, 1)

    def check(self, tables: Iterable[list[int]]) -> None:
        """Free and held blocks are all blocks, and the counts are those of the tables."""
        self._check(tables, [])

    def _check(self, tables: Iterable[list[int]], unheld: list[int]) -> None:
        held: dict[int, int] = {}
        for table in tables:
            for block in table:
                held[block] = held.get(block, 0) + 1
        blocks = sorted([*self.free, *held, *unheld])
        assert blocks == list(range(self.num_blocks)), "blocks were lost, or are free and held"
        assert {b: n for b, n in held.items() if n > 1} == self.sharers, "reference counts differ from the tables"
        assert self.num_saved == sum(n - 1 for n in held.values()), "saved blocks are miscounted"
