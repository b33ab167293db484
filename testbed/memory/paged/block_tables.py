"""Block tables, and the count of slots that store a token."""

from collections.abc import Collection, Iterable
from typing import NoReturn

from testbed.core.sequence import Sequence
from testbed.core.slots import NO_OPS, Ops, ceil_div
from testbed.memory.paged.block_pool import BlockPool
from testbed.memory.paged.copy_on_write import copy_tails


class BlockTable:
    """The blocks of one sequence in order, as many as its room needs; the first `pinned` are a registered prefix."""

    __slots__ = ("blocks", "pinned", "seq")

    def __init__(self, seq: Sequence, blocks: list[int], pinned: int = 0) -> None:
        self.seq = seq
        self.blocks = blocks
        self.pinned = pinned


class Tables:
    """Block tables by sequence id. `live` counts the slots of `pool` that store a token, shared ones once."""

    __slots__ = ("block_size", "held", "live", "pool")

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self.held: dict[int, BlockTable] = {}
        self.pool = pool
        self.block_size = block_size
        self.live = 0

    def of(self, seq: Sequence) -> BlockTable:
        """The table of a sequence that is on the device."""
        return self.held.get(seq.seq_id) or absent(seq)

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """`child` holds the parent's blocks, instead of its own if it has any."""
        table, own = self.of(parent), self.held.get(child.seq_id)
        if own is not None:
            self._replace(own, table)
        else:
            self.pool.share(table.blocks)
            self.held[child.seq_id] = BlockTable(child, list(table.blocks), table.pinned)

    def give_up(self, seq: Sequence, kept: int = 0) -> None:
        """The sequence leaves the device; its first `kept` blocks remain held."""
        self._drop_end(self.of(seq), kept)
        del self.held[seq.seq_id]

    def copy_tails(self, writers: Collection[BlockTable]) -> Ops:
        """Give each writer a last block of its own, from the free ones."""
        if not writers:
            return NO_OPS
        copies = copy_tails(writers, self.pool, self.block_size)
        self.live += sum(table.seq.room % self.block_size for table in writers)
        return Ops(copies)

    def check(self, pinned: dict[int, list[int]], kept: Iterable[list[int]]) -> None:
        """Raise AssertionError where a count is wrong.

        `pinned` holds the blocks of registered prefixes by length; `kept` what swapped sequences still hold.
        """
        self.pool.check([*(table.blocks for table in self.held.values()), *pinned.values(), *kept])
        stored = [(table.seq.room, table.blocks) for table in self.held.values()]
        assert self.live == stored_tokens([*stored, *pinned.items()], self.block_size), "live slots are miscounted"
        for seq_id, table in self.held.items():
            assert len(table.blocks) == ceil_div(table.seq.room, self.block_size), f"table of sequence {seq_id}"

    def _replace(self, table: BlockTable, parent: BlockTable) -> None:
        """`table` becomes the parent's, of equal length; what both share already is left alone."""
        if table.seq.room != parent.seq.room:
            raise ValueError(f"a beam of {table.seq.room} tokens cannot go on with {parent.seq.room} of another")
        # Sharing begins at the root: the last block that both have in common has only common ones before it.
        own, others = table.blocks, parent.blocks
        common = len(own)
        while common and own[common - 1] != others[common - 1]:
            common -= 1
        self._drop_end(table, common)
        own[common:] = others[common:]
        self.pool.share(own[common:])

    def _drop_end(self, table: BlockTable, first: int) -> None:
        """Drop the blocks from the given one on, and the stored tokens of those that nobody else holds."""
        blocks, padding = table.blocks, len(table.blocks) * self.block_size - table.seq.room
        if padding and self.pool.sharers and self.pool.ref_count(blocks[-1]) > 1:
            padding = 0
        self.live -= self.pool.put(blocks[first:] if first else blocks) * self.block_size - padding


def absent(seq: Sequence) -> NoReturn:
    """Nobody has a table for it."""
    raise KeyError(f"{seq} is not on the device: admit it, or move it back, first")


def stored_tokens(tables: Iterable[tuple[int, list[int]]], block_size: int) -> int:
    """Slots that store a token in tables of so many tokens and these blocks, shared ones once."""
    filled = dict[int, int]()
    for num_tokens, blocks in tables:
        for i, block in enumerate(blocks):
            filled[block] = max(filled.get(block, 0), min(block_size, num_tokens - i * block_size))
    return sum(filled.values())
