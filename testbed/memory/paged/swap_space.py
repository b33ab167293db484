"""The host tier (section 4.5): groups swap out and in as a whole, every shared block once."""

from dataclasses import dataclass

from testbed.core.sequence import Sequence
from testbed.core.slots import DEVICE, HOST, Answer, Copy, Grant, Move, Ops, Refusal
from testbed.memory.paged.block_pool import BlockPool
from testbed.memory.paged.block_tables import BlockTable


@dataclass(slots=True)
class HostTable:
    """A swapped sequence's blocks on the host; its blocks `kept`, a registered prefix, stay on the device."""

    kept: list[int]
    blocks: list[int]


class SwapSpace:
    """The host's blocks, and the tables of the swapped sequences."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.tables: dict[int, HostTable] = {}
        self._pool = BlockPool(num_blocks)

    def put(self, tables: list[BlockTable]) -> Answer:
        """Swap a group out: allocate its host blocks and return the transfers, or refuse; pinned blocks do not move."""
        moving = [table.blocks[table.pinned :] for table in tables]
        if len(distinct(moving)) > len(self._pool.free):
            return Refusal.LATER
        moved, copies = move_tables(moving, self._pool, self.block_size)
        for table, blocks in zip(tables, moved, strict=True):
            self.tables[table.seq.seq_id] = HostTable(table.blocks[: table.pinned], blocks)
        return Grant(0, Ops(moves=(Move(DEVICE, HOST, copies),)))

    def num_blocks(self, seqs: list[Sequence]) -> int:
        return len(distinct([self.tables[seq.seq_id].blocks for seq in seqs]))

    def fetch(self, seqs: list[Sequence], pool: BlockPool) -> tuple[list[BlockTable], Ops]:
        """Swap a group in to free blocks of `pool`; returns its tables there and the transfers."""
        hosted = [self.tables[seq.seq_id] for seq in seqs]
        moved, copies = move_tables([table.blocks for table in hosted], pool, self.block_size)
        for seq in seqs:
            self.drop(seq)
        tables = [
            BlockTable(seq, table.kept + new, len(table.kept))
            for seq, table, new in zip(seqs, hosted, moved, strict=True)
        ]
        return tables, Ops(moves=(Move(HOST, DEVICE, copies),))

    def drop(self, seq: Sequence) -> list[int]:
        """Free a sequence's host blocks; returns its blocks that stayed on the device."""
        table = self.tables.pop(seq.seq_id)
        self._pool.put(table.blocks)
        return table.kept

    def check(self) -> None:
        self._pool.check(table.blocks for table in self.tables.values())


def distinct(tables: list[list[int]]) -> list[int]:
    return list(dict.fromkeys(block for table in tables for block in table))


def move_tables(tables: list[list[int]], pool: BlockPool, block_size: int) -> tuple[list[list[int]], tuple[Copy, ...]]:
    """Copy tables to free blocks of another pool, with the same sharing; a transfer for each block."""
    source = distinct(tables)
    target_of = dict(zip(source, pool.take(len(source)), strict=True))
    moved = [[target_of[block] for block in table] for table in tables]
    seen = set[int]()
    for table in moved:
        pool.share(block for block in table if block in seen)
        seen.update(table)
    size = block_size
    return moved, tuple([Copy(src * size, dst * size, size) for src, dst in target_of.items()])
