"""The number of members of a batch that read each page of a column."""

from collections.abc import Mapping

from testbed.core.sequence import Sequence
from testbed.memory.groups.page_table import PageTable
from testbed.memory.shared_reads import SharedReads


class SharedPages(SharedReads):
    """The pages of one column of full attention, which begin at block 0 and are never given back
    before their sequence ends.
    """

    def __init__(self, tables: Mapping[int, PageTable], column: int, block_size: int) -> None:
        super().__init__()
        self._tables = tables
        self._column = column
        self._block_size = block_size

    def full_blocks(self, seq: Sequence) -> list[int]:
        pages = self._tables[seq.seq_id].pages[self._column]
        return pages[: seq.num_slots // self._block_size]
