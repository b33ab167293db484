"""Copy-on-write at block granularity (section 4.4, Fig. 8)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from testbed.core.slots import Copy
from testbed.memory.paged.block_pool import BlockPool

if TYPE_CHECKING:
    from testbed.memory.paged.block_tables import BlockTable


def copying_writers(tails: Iterable[BlockTable], pool: BlockPool) -> list[BlockTable]:
    """Of tables with a partial last block, those that must copy it before they write, in the order in which they write.

    The first writer of a shared block copies it; when only one holder is left it writes in place.
    """
    writers, counts = [], dict[int, int]()
    for table in tails:
        tail = table.blocks[-1]
        count = counts.get(tail, pool.ref_count(tail))
        if count > 1:
            writers.append(table)
            counts[tail] = count - 1
    return writers


def copy_tails(writers: Iterable[BlockTable], pool: BlockPool, block_size: int) -> tuple[Copy, ...]:
    """Give each writer its own last block; returns the copies, of whole blocks as the 2023 system makes them."""
    copies = []
    for table in writers:
        source, target = table.blocks[-1], pool.free.pop()
        pool.drop(source)
        table.blocks[-1] = target
        copies.append(Copy(source * block_size, target * block_size, block_size))
    return tuple(copies)
