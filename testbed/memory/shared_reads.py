"""Tokens that the sequences of an iteration read more than once because they share them.

`read_again` walks tables: the plain statement, right for any policy. `SharedReads` is an index of a
batch that gives the same without walking it.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Row
from itertools import chain

import numpy as np

from testbed.core.request import Column
from testbed.core.sequence import BatchIndex, Sequence
from testbed.core.slots import GroupTable

FEW = 100  # extents, up to which a loop is faster than arrays


def read_again(reads: Iterable[tuple[int, Row[GroupTable]]]) -> int:
    """Tokens that are read more than once in a layer, for pairs of (tokens, tables of a sequence).

    The tables are those of the layers that read all tokens. A token that n sequences read counts n
    - 1 times. If the layers of a group lie in several columns, the result is their mean.
    """
    slots_per_token = num_extents = 0
    each: list[tuple[int, GroupTable]] = []
    for num_tokens, tables in reads:
        slots_per_token = sum([table.slots_per_token for table in tables])
        num_extents += sum([len(table.extents) for table in tables])
        each += [(num_tokens, table) for table in tables]
    if not slots_per_token:
        return 0
    count = repeated_of_few if num_extents <= FEW else repeated_of_many
    return count(each) // slots_per_token


def repeated_of_few(reads: Row[tuple[int, GroupTable]]) -> int:
    """Slots by which the ranges that are read are longer together than what they cover."""
    ranges = list[tuple[int, int]]()
    for num_tokens, table in reads:
        left = (num_tokens - table.first) * table.slots_per_token
        for start, length in table.extents if left > 0 else ():
            ranges.append((start, start + (length if length < left else left)))
            left -= length
            if left <= 0:
                break
    repeated = reached = 0
    for start, end in sorted(ranges):
        if start < reached:
            repeated += (end if end < reached else reached) - start
        if end > reached:
            reached = end
    return repeated


def repeated_of_many(reads: Row[tuple[int, GroupTable]]) -> int:
    """`repeated_of_few` on arrays."""
    starts, ends = slots_read(reads)
    return int((ends - starts).sum()) - num_distinct(starts, ends)


def slots_read(reads: Row[tuple[int, GroupTable]]) -> tuple[Column, Column]:
    """The slots that store the first tokens of tables, for pairs of (tokens, table): starts and
    ends of ranges, one an extent.
    """
    extents = chain.from_iterable(table.extents for _, table in reads)
    starts, lengths = np.fromiter(chain.from_iterable(extents), np.int64).reshape(-1, 2).T
    before = np.append(np.int64(0), lengths.cumsum())  # slots of all extents before each
    counts = [len(table.extents) for _, table in reads]
    first = np.cumsum([0, *counts[:-1]])  # extent of each table
    stored = [(tokens - table.first) * table.slots_per_token for tokens, table in reads]
    left = np.repeat(before[first] + stored, counts) - before[:-1]
    return starts, starts + np.minimum(np.maximum(left, 0), lengths)


def num_distinct(starts: Column, ends: Column) -> int:
    """Slots that lie in at least one of the ranges from a start to an end."""
    order = np.argsort(starts)
    starts, ends = starts[order], ends[order]
    reached = np.append(np.int64(0), np.maximum.accumulate(ends)[:-1])  # before each range
    return int((ends - np.maximum(starts, reached)).clip(0).sum())


class SharedReads(BatchIndex):
    """The number of members of a batch that read each block.

    full_blocks: gives a new list of the blocks of a sequence that are full, in order. `readers`
    counts the members by block. Only blocks that were full when their sequence joined, or changed,
    are counted: a block that a step fills belongs to one sequence until that forks or the block can
    be found, and a partial one that is shared is copied before the step that reads it.
    """

    def __init__(self, full_blocks: Callable[[Sequence], list[int]]) -> None:
        self.full_blocks = full_blocks
        self.readers = Counter[int]()
        self._num_reads = 0  # by all members together
        self._counted: dict[int, list[int]] = {}
        self._changed: dict[int, Sequence] = {}

    def added(self, seq: Sequence) -> None:
        blocks = self._counted[seq.seq_id] = self.full_blocks(seq)
        self._count(blocks)

    def removed(self, seq: Sequence) -> None:
        self._changed.pop(seq.seq_id, None)
        self._discount(self._counted.pop(seq.seq_id))

    def changed(self, seq: Sequence) -> None:
        """`seq`, a member, is the parent or the child of a fork, so that its full blocks are other
        ones, or others may find blocks that its steps have filled.

        They are counted when they are read: until then, a member of a beam may fork many times.
        """
        self._changed[seq.seq_id] = seq

    def again(self) -> int:
        """Reads of a block but the first by the members."""
        for seq in self._changed.values():
            self._count_anew(seq)
        self._changed.clear()
        return self._num_reads - len(self.readers)

    def again_with(self, others: Iterable[Sequence]) -> int:
        """`again` if `others` read their blocks beside the members."""
        again, readers = self.again(), self.readers
        read = set[int]()
        for seq in others:
            for block in self.full_blocks(seq):
                again += block in readers or block in read
                read.add(block)
        return again

    def _count_anew(self, seq: Sequence) -> None:
        before, blocks = self._counted[seq.seq_id], self.full_blocks(seq)
        # Sharing begins at the first block: all blocks before the last common one are common too.
        common = min(len(before), len(blocks))
        while common and before[common - 1] != blocks[common - 1]:
            common -= 1
        self._discount(before[common:])
        self._count(blocks[common:])
        self._counted[seq.seq_id] = blocks

    def _count(self, blocks: list[int]) -> None:
        self.readers.update(blocks)
        self._num_reads += len(blocks)

    def _discount(self, blocks: list[int]) -> None:
        readers = self.readers
        for block in blocks:
            count = readers.pop(block) - 1
            if count:
                readers[block] = count
        self._num_reads -= len(blocks)
