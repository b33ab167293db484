"""Copy-on-write by blocks (section 4.4, Fig. 8): a sequence copies a partial last block that others
have too before it writes to it.
"""

from collections.abc import Collection, Iterable

from testbed.core.slots import NO_OPS, Copy, Ops, record
from testbed.memory.paged.block_table import BlockTable, Tables


def copying_writers(tables: Tables, tails: Iterable[BlockTable]) -> list[BlockTable]:
    """The tables, of those whose last block will be written, that must copy it: all writers of a
    shared one but the last.
    """
    writers: list[BlockTable] = []
    counts: dict[int, int] = {}
    sharers = tables.pool.sharers
    for table in tails:
        tail = table.blocks[-1]
        count = counts.get(tail) or sharers.get(tail, 1)
        if count > 1:
            writers.append(table)
            counts[tail] = count - 1
    return writers


def copy_tails(tables: Tables, writers: Collection[BlockTable], extended: int) -> Ops:
    """Replace the last block of each writer, a member of a batch whose steps have allocated
    `extended` slots, by a free one; the copies are of whole blocks, as in the 2023 system.
    """
    if not writers:
        return NO_OPS
    size, pool = tables.block_size, tables.pool
    sources = [table.blocks[-1] for table in writers]
    copies: list[Copy] = []
    for table, source, target in zip(writers, sources, pool.take(len(sources)), strict=True):
        table.blocks[-1] = target
        copies.append(record(Copy, (source * size, target * size, size)))
    tables.live += sum([(table.seq.slots_offset + extended) % size for table in writers])
    pool.unshared(sources)
    return record(Ops, (tuple(copies), (), (), ()))
