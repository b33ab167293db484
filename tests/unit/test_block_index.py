"""The index of a batch's blocks against the plain account of them, step by step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.batch import Batch
from testbed.core.request import Incoming
from testbed.core.sequence import Sequence
from testbed.core.slots import Growth, growth_of
from testbed.memory.paged.block_index import BlockIndex
from testbed.memory.paged.block_pool import BlockPool
from testbed.memory.paged.block_tables import BlockTable, Tables

SIZE = 4
ROOMS = st.lists(st.integers(1, 3 * SIZE), min_size=1, max_size=6)


def batch_of(rooms: list[int]) -> tuple[Batch, BlockIndex]:
    """A batch whose members have room for so many tokens, in as many blocks as that takes."""
    batch, tables = Batch(), Tables(BlockPool(1000), SIZE)
    for i, room in enumerate(rooms):
        seq = Sequence(i, Incoming(i, 0, room))
        seq.room = room
        tables.held[i] = BlockTable(seq, tables.pool.take(-(-room // SIZE)))
        batch.join(seq)
    return batch, batch.index("blocks", lambda batch: BlockIndex(batch, tables, tables.pool))


def events(rooms: list[int], steps: int) -> list[tuple[int, int]]:
    """Each step with the slots that it takes: a block for every member whose blocks are full by then."""
    return [(step, SIZE * sum((room + step) % SIZE == 0 for room in rooms)) for step in range(steps)]


@given(ROOMS, st.integers(1, 5 * SIZE))
def test_growth_is_that_of_its_plain_events(rooms: list[int], steps: int) -> None:
    batch, index = batch_of(rooms)
    assert index.grow(steps) == growth_of(events(rooms, steps))
    batch.extend(steps)
    assert [len(index.tables.of(seq).blocks) * SIZE for seq in batch] == [-(-seq.room // SIZE) * SIZE for seq in batch]


@given(ROOMS, st.integers(0, SIZE))
def test_one_step_takes_what_growing_by_one_takes(rooms: list[int], before: int) -> None:
    indexes = [batch_of(rooms)[1] for _ in range(2)]
    for index in indexes:
        index.grow(before)
        index.batch.extend(before)
    stepped, grown = indexes
    assert Growth(stepped.step()) == grown.grow(1)
    assert [t.blocks for t in stepped.tables.held.values()] == [t.blocks for t in grown.tables.held.values()]


@pytest.mark.parametrize("plain", [[], [(0, 4)], [(0, 4), (3, 8), (7, 4)]])
def test_moments_are_sums_over_the_events(plain: list[tuple[int, int]]) -> None:
    slots, first, second = growth_of(plain)
    assert slots == sum(w for _, w in plain)
    assert first == sum(w * t for t, w in plain)
    assert second == sum(w * t * t for t, w in plain)
