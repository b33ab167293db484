"""Copy-on-write at block granularity (section 4.4, Fig. 8)."""

from collections.abc import Iterable

from testbed.core.slots import Copy
from testbed.memory.paged.block_pool import BlockPool
from testbed.memory.paged.block_table import BlockTable


def copying_writers(tables: Iterable[BlockTable], pool: BlockPool, block_size: int) -> list[BlockTable]:
    """The tables that must copy their last block before they write, in the order in which they write.

    The first writer of a shared block copies it; when only one holder is left it writes in place.
    """
    writers, counts = [], dict[int, int]()
    for table in tables:
        if table.num_tokens % block_size:
            tail = table.blocks[-1]
            count = counts.get(tail, pool.ref_count(tail))
            if count > 1:
                writers.append(table)
                counts[tail] = count - 1
    return writers


def copy_tails(writers: list[BlockTable], pool: BlockPool, block_size: int) -> tuple[tuple[Copy, ...], int]:
    """Give each writer its own last block; returns the copies and how many stored tokens they duplicate."""
    copies, num_tokens = [], 0
    for table in writers:
        source, target = table.blocks[-1], pool.free.pop()
        pool.drop(source)
        table.blocks[-1] = target
        filled = table.num_tokens % block_size
        copies.append(Copy(source * block_size, target * block_size, filled))
        num_tokens += filled
    return tuple(copies), num_tokens
