"""Block tables of sequences and of registered prefixes (section 4.4)."""

from collections.abc import Iterable
from typing import NoReturn

from testbed.core.sequence import Sequence
from testbed.core.slots import NO_OPS, Copy, Ops, ceil_div
from testbed.memory.paged.block_pool import BlockPool


class BlockTable:
    """The blocks of one sequence in order, enough for its num_slots; the first `pinned` are a
    registered prefix.
    """

    __slots__ = ("blocks", "pinned", "seq")

    def __init__(self, seq: Sequence, blocks: list[int], pinned: int = 0) -> None:
        self.seq = seq
        self.blocks = blocks
        self.pinned = pinned


class Tables:
    """Block tables by sequence id, of the device or the host.

    `live` counts the slots of `pool` that store a token, shared ones once. `prefixes` are the
    registered ones (section 4.4), pinned blocks by length. Sequences with a prefix share its whole
    blocks. Each copies the partial last one, because it writes its next tokens there, and the one
    with the last prompt token, which it always computes.
    """

    __slots__ = ("block_size", "held", "live", "pool", "prefixes")

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self.held: dict[int, BlockTable] = {}
        self.prefixes: dict[int, list[int]] = {}
        self.pool = pool
        self.block_size = block_size
        self.live = 0

    def of(self, seq: Sequence) -> BlockTable:
        return self.held.get(seq.seq_id) or absent(seq)

    def whole_prefix(self, seq: Sequence) -> list[int]:
        """The whole blocks of the registered prefix of `seq`; the sequence never writes to them."""
        return self.prefixes[seq.registered_prefix][: self._num_whole(seq)]

    def rest_of_prefix(self, seq: Sequence, blocks: list[int]) -> Ops:
        """The copy of the rest of the prefix to `blocks`, the blocks of `seq`."""
        size, last = self.block_size, self._num_whole(seq)
        if seq.registered_prefix == last * size:
            return NO_OPS
        return Ops(
            (Copy(self.prefixes[seq.registered_prefix][last] * size, blocks[last] * size, size),)
        )

    def fork(
        self, parent: Sequence, child: Sequence, num_slots: int
    ) -> tuple[BlockTable, BlockTable]:
        """Share the blocks of the parent, which has num_slots slots, with `child`, which first
        drops the blocks that it has; returns both tables.
        """
        held = self.held
        table, own = held.get(parent.seq_id) or absent(parent), held.get(child.seq_id)
        if own is None:
            self.pool.share(table.blocks)
            own = held[child.seq_id] = BlockTable(child, list(table.blocks), table.pinned)
            return table, own
        are_even = parent.batch is child.batch and parent.slots_offset == child.slots_offset
        if not are_even and child.num_slots != num_slots:
            raise ValueError(
                f"a beam of {child.num_slots} tokens cannot continue from a beam of {num_slots}"
            )
        self._replace(own, table, num_slots)
        return table, own

    def give_up(self, seq: Sequence, kept: int = 0) -> None:
        """Remove a sequence's table; its first `kept` blocks keep their reference."""
        table = self.held.pop(seq.seq_id, None) or absent(seq)
        self._drop_end(table, kept, seq.slots_offset)  # as `num_slots`, outside a batch

    def receive(self, tables: list[BlockTable]) -> tuple[Copy, ...]:
        """Copy tables of another pool to free blocks, with the same sharing: a transfer for each
        block but pinned ones.

        Pinned blocks stay on the device, also of a sequence on the host.
        """
        source = moving(tables)
        target_of = dict(zip(source, self.pool.take(len(source)), strict=True))
        size, seen, stored = self.block_size, set[int](), list[tuple[int, list[int]]]()
        for table in tables:
            moved = [target_of[block] for block in table.blocks[table.pinned :]]
            self.pool.share([block for block in moved if block in seen])
            seen.update(moved)
            stored.append((table.seq.num_slots - table.pinned * size, moved))
            blocks = table.blocks[: table.pinned] + moved
            self.held[table.seq.seq_id] = BlockTable(table.seq, blocks, table.pinned)
        self.live += stored_tokens(stored, size)
        return tuple([Copy(src * size, dst * size, size) for src, dst in target_of.items()])

    def cut(self, seq: Sequence, num_tokens: int) -> None:
        """Keep the blocks of a sequence's first num_tokens tokens."""
        table, kept, num_slots = self.of(seq), ceil_div(num_tokens, self.block_size), seq.num_slots
        table.pinned = min(table.pinned, num_tokens // self.block_size)
        dropped, padding = num_slots - num_tokens, kept * self.block_size - num_tokens
        if kept < len(table.blocks):
            self._drop_end(table, kept, num_slots)
            del table.blocks[kept:]
            dropped = padding
        if self.pool.ref_count(table.blocks[-1]) == 1:
            self.live -= dropped

    def _num_whole(self, seq: Sequence) -> int:
        return min(seq.registered_prefix, seq.prompt_len - 1) // self.block_size

    def _replace(self, table: BlockTable, parent: BlockTable, num_slots: int) -> None:
        """Replace the blocks of `table` by the parent's, of equal length; common leading blocks do
        not change.
        """
        # Sharing begins at the first block: all blocks before the last common one are common too.
        own, others = table.blocks, parent.blocks
        common = len(own)
        while common and own[common - 1] != others[common - 1]:
            common -= 1
        if common == len(own) - 1:
            self._replace_last(table, others[common], num_slots)
        elif common < len(own):
            self._replace_end(table, others[common:], num_slots)

    def _replace_end(self, table: BlockTable, blocks: list[int], num_slots: int) -> None:
        """The last blocks of `table` become these, which another table has."""
        common = len(table.blocks) - len(blocks)
        self._drop_end(table, common, num_slots)
        table.blocks[common:] = blocks
        self.pool.share(blocks)

    def _replace_last(self, table: BlockTable, block: int, num_slots: int) -> None:
        """`_replace_end` of one block, the only one in which most beams differ."""
        pool, own = self.pool, table.blocks
        if pool.put_one(own[-1]):
            self.live -= num_slots - (len(own) - 1) * self.block_size
        own[-1] = block
        pool.sharers[block] = pool.sharers.get(block, 1) + 1
        pool.num_saved += 1

    def _drop_end(self, table: BlockTable, first: int, num_slots: int) -> None:
        """Drop the blocks from index `first` on of a sequence of num_slots slots, and the stored
        tokens of those without another reference.
        """
        blocks = table.blocks
        padding = len(blocks) * self.block_size - num_slots
        if padding and blocks[-1] in self.pool.sharers:
            padding = 0
        self.live -= self.pool.put(blocks[first:] if first else blocks) * self.block_size - padding


def absent(seq: Sequence) -> NoReturn:
    raise KeyError(f"{seq}: is not on the device (admit it, or move it back, first)")


def moving(tables: Iterable[BlockTable]) -> list[int]:
    """The blocks that move with these tables, shared ones once."""
    return list(dict.fromkeys(block for table in tables for block in table.blocks[table.pinned :]))


def stored_tokens(tables: Iterable[tuple[int, list[int]]], block_size: int) -> int:
    """Slots that store a token, shared ones once, for pairs of (tokens, blocks of the table)."""
    filled: dict[int, int] = {}
    for num_tokens, blocks in tables:
        for i, block in enumerate(blocks):
            filled[block] = max(filled.get(block, 0), min(block_size, num_tokens - i * block_size))
    return sum(filled.values())
