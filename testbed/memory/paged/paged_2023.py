"""Paged memory with the margins of the 2023 system's block manager (the artifact's)."""

from collections.abc import Collection
from itertools import groupby
from math import floor
from operator import attrgetter

from testbed.core.sequence import Batch, Sequence
from testbed.core.units import PositiveTokens, Share
from testbed.memory.paged.block_boundaries import BlockIndex
from testbed.memory.paged.block_pool import BlockPool
from testbed.memory.paged.block_table import BlockTable, Tables
from testbed.memory.paged.paged import Paged
from testbed.memory.paged.watermark import Watermark
from testbed.memory.policy import PoolSpec

REQUEST_ID = attrgetter("request_id")


class GroupIndex(BlockIndex):
    """Also counts the members of each request; `widest` is the largest count so far."""

    def __init__(self, batch: Batch, tables: Tables, pool: BlockPool) -> None:
        super().__init__(batch, tables, pool)
        self.num_seqs: dict[int, int] = {}
        self.widest = 0

    def added(self, seq: Sequence) -> None:
        BlockIndex.added(self, seq)  # `super`, and `max`, take longer than all the rest
        request_id, num_seqs = seq.request_id, self.num_seqs
        count = num_seqs[request_id] = num_seqs.get(request_id, 0) + 1
        if count > self.widest:
            self.widest = count

    def removed(self, seq: Sequence) -> None:
        BlockIndex.removed(self, seq)
        count = self.num_seqs.pop(seq.request_id) - 1
        if count:
            self.num_seqs[seq.request_id] = count

    def requested(self, num_steps: int, writers: Collection[BlockTable], taken: int) -> int:
        """Free blocks for num_steps steps, which take `taken` blocks, if each group in turn
        requires one for each of its sequences.

        The last step requires the most, because blocks are only taken. Its groups are visited from
        the last one, until an earlier group, even of `widest` sequences, cannot require more.
        """
        most, step = 0, self.batch.extended + num_steps - 1
        copying = {table.seq.seq_id for table in writers} if num_steps == 1 else ()
        for _, members in groupby(reversed(self.batch.sequences.values()), REQUEST_ID):
            group = list(members)
            taken -= sum(self._is_due(seq, step) or seq.seq_id in copying for seq in group)
            most = max(most, taken + len(group))
            if taken + self.widest <= most:
                break
        return most

    def _is_due(self, seq: Sequence, step: int) -> bool:
        return (seq.slots_offset + step) % self.size == 0


class Paged2023(Paged):
    """A step requires a free block for each sequence of a group unless it decodes alone; watermarks
    round down.
    """

    def __init__(
        self, pool: PoolSpec, block_size: PositiveTokens = 16, watermark: Share = 0.01
    ) -> None:
        super().__init__(pool, block_size=block_size, watermark=watermark)
        self._watermark = Watermark(watermark, self._pool.num_blocks, floor)

    def guaranteed_steps(self, batch: Batch) -> int:
        """Steps for which every group finds a free block for each of its sequences, in any order of
        groups.
        """
        index: GroupIndex = batch.indexes.get(self) or batch.index(self, self._index)
        left = len(self._pool.free) - (index.widest if len(index.num_seqs) > 1 else 0)
        if index.tails or not batch.sequences or left < 0:
            return 0
        steps = index.steps_within(left)
        return steps if steps < self._max_len else self._max_len

    def _requested_by(
        self, index: BlockIndex, num_tokens: int, writers: Collection[BlockTable]
    ) -> int:
        needed = super()._requested_by(index, num_tokens, writers)
        assert isinstance(index, GroupIndex)
        if len(index.num_seqs) == 1 or needed + index.widest <= len(self._pool.free):
            return needed
        return max(needed, index.requested(num_tokens, writers, needed))

    def _index(self, batch: Batch) -> GroupIndex:
        return GroupIndex(batch, self._tables, self._pool)
