"""The host tier (section 4.5): whole groups move there and back, every shared block once."""

from dataclasses import dataclass

from testbed.core.sequence import Sequence
from testbed.core.slots import DEVICE, HOST, Answer, Copy, Grant, Move, Ops, Refusal
from testbed.memory.paged.block_pool import BlockPool
from testbed.memory.paged.block_tables import BlockTable


@dataclass(slots=True)
class HostTable:
    """What a sequence holds on the host; its blocks `kept`, a registered prefix, never leave the device."""

    kept: list[int]
    blocks: list[int]


class SwapSpace:
    """The host's blocks, and the tables of the sequences that are there."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.tables: dict[int, HostTable] = {}
        self._pool = BlockPool(num_blocks)

    def put(self, tables: list[BlockTable]) -> Answer:
        """Room for a group's tables but for the blocks that each keeps on the device, and how they get here."""
        moving = [table.blocks[table.pinned :] for table in tables]
        source = distinct(moving)
        if len(source) > len(self._pool.free):
            return Refusal.LATER
        target = self._pool.take(len(source))
        moved = pair(moving, source, target)
        share_repeated(moved, self._pool)
        for table, blocks in zip(tables, moved, strict=True):
            self.tables[table.seq.seq_id] = HostTable(table.blocks[: table.pinned], blocks)
        return Grant(0, Ops(moves=(Move(DEVICE, HOST, transfers(source, target, self.block_size)),)))

    def blocks(self, seqs: list[Sequence]) -> list[int]:
        """What a group holds here, shared blocks once."""
        return distinct([self.tables[seq.seq_id].blocks for seq in seqs])

    def fetch(self, seqs: list[Sequence], source: list[int], pool: BlockPool) -> tuple[list[BlockTable], Ops]:
        """The group, which holds the blocks `source` here, goes back to free blocks of `pool`; its tables there."""
        target = pool.take(len(source))
        hosted = [self.tables[seq.seq_id] for seq in seqs]
        moved = pair([table.blocks for table in hosted], source, target)
        share_repeated(moved, pool)
        for seq in seqs:
            self.drop(seq)
        tables = [
            BlockTable(seq, table.kept + new, len(table.kept))
            for seq, table, new in zip(seqs, hosted, moved, strict=True)
        ]
        return tables, Ops(moves=(Move(HOST, DEVICE, transfers(source, target, self.block_size)),))

    def drop(self, seq: Sequence) -> list[int]:
        """The sequence leaves the host; returns the blocks that it has kept on the device."""
        table = self.tables.pop(seq.seq_id)
        self._pool.put(table.blocks)
        return table.kept

    def check(self) -> None:
        """Raise AssertionError where blocks were lost or miscounted."""
        self._pool.check(table.blocks for table in self.tables.values())


def distinct(tables: list[list[int]]) -> list[int]:
    """Every block of these tables once, in order of first appearance."""
    return list(dict.fromkeys(block for table in tables for block in table))


def pair(tables: list[list[int]], source: list[int], target: list[int]) -> list[list[int]]:
    """The tables with every source block replaced by its target block."""
    target_of = dict(zip(source, target, strict=True))
    return [[target_of[block] for block in table] for table in tables]


def transfers(source: list[int], target: list[int], block_size: int) -> tuple[Copy, ...]:
    """One transfer a block between the tiers."""
    pairs = zip(source, target, strict=True)
    return tuple(Copy(src * block_size, dst * block_size, block_size) for src, dst in pairs)


def share_repeated(tables: list[list[int]], pool: BlockPool) -> None:
    """Count the second and later holders of every freshly taken block."""
    seen = set[int]()
    for table in tables:
        pool.share(block for block in table if block in seen)
        seen.update(table)
