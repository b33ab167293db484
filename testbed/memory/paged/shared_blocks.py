"""The number of members of a batch that read each block of a paged pool."""

from testbed.core.sequence import Sequence
from testbed.memory.paged.block_table import Tables
from testbed.memory.shared_reads import SharedReads


class SharedBlocks(SharedReads):
    """The blocks of block tables; a policy keeps it on a batch under its tables."""

    def __init__(self, tables: Tables) -> None:
        super().__init__()
        self.tables = tables

    def full_blocks(self, seq: Sequence) -> list[int]:
        return self.tables.of(seq).blocks[: seq.num_slots // self.tables.block_size]
