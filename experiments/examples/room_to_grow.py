"""A memory policy in one method."""

from collections.abc import Collection

from testbed.memory.paged.block_table import BlockTable
from testbed.memory.paged.paged import Paged


class RoomToGrow(Paged):
    """Paged memory that admits a request if 8 blocks stay free for each running sequence."""

    def reserve(self, tables: Collection[BlockTable]) -> int:
        return 8 * len(tables)
