"""Blocks: who gets which and when a shared one is free; the index of a batch's against the plain account of them."""

from hypothesis import given
from hypothesis import strategies as st

from testbed.core.request import Incoming
from testbed.core.sequence import Batch, Sequence
from testbed.core.slots import Growth, growth_of
from testbed.memory.paged.block_index import BlockIndex
from testbed.memory.paged.block_pool import BlockPool
from testbed.memory.paged.block_tables import BlockTable, Tables

SIZE = 4
SLOT_COUNTS = st.lists(st.integers(1, 3 * SIZE), min_size=1, max_size=6)


def test_blocks_are_taken_lowest_first_or_in_list_order():
    assert BlockPool(4).take(3) == [0, 1, 2]
    assert BlockPool(4, [2, 0, 3, 1]).take(4) == [2, 0, 3, 1]
    assert BlockPool(4).take(0) == []


def test_shared_block_is_free_after_its_last_release():
    pool = BlockPool(4)
    blocks = pool.take(2)
    pool.share(blocks)
    pool.share(blocks[:1])
    assert ([pool.ref_count(b) for b in blocks], pool.num_saved) == ([3, 2], 3)
    assert [pool.put(list(blocks)), pool.put(list(blocks)), pool.put(blocks[:1])] == [0, 1, 1]
    assert (sorted(pool.free), pool.sharers, pool.num_saved) == ([0, 1, 2, 3], {}, 0)


def batch_of(slot_counts: list[int]) -> tuple[Batch, BlockIndex]:
    """A batch whose members have slots for so many tokens, in as many blocks as that takes."""
    batch, tables = Batch(), Tables(BlockPool(1000), SIZE)
    for i, num_slots in enumerate(slot_counts):
        seq = Sequence(i, Incoming(i, 0, num_slots))
        seq.num_slots = num_slots
        tables.held[i] = BlockTable(seq, tables.pool.take(-(-num_slots // SIZE)))
        batch.add(seq)
    return batch, batch.index("blocks", lambda batch: BlockIndex(batch, tables, tables.pool))


def events(slot_counts: list[int], steps: int) -> list[tuple[int, int]]:
    """Each step with the slots that it takes: a block for every member whose blocks are full by then."""
    return [(step, SIZE * sum((num_slots + step) % SIZE == 0 for num_slots in slot_counts)) for step in range(steps)]


@given(SLOT_COUNTS, st.integers(1, 5 * SIZE))
def test_batch_growth_equals_growth_of_single_events(slot_counts: list[int], steps: int) -> None:
    batch, index = batch_of(slot_counts)
    assert index.grow(steps) == growth_of(events(slot_counts, steps))
    batch.extend(steps)
    assert [len(index.tables.of(seq).blocks) * SIZE for seq in batch] == [
        -(-seq.num_slots // SIZE) * SIZE for seq in batch
    ]


@given(SLOT_COUNTS, st.integers(0, SIZE))
def test_single_step_equals_growth_by_one(slot_counts: list[int], before: int) -> None:
    indexes = [batch_of(slot_counts)[1] for _ in range(2)]
    for index in indexes:
        index.grow(before)
        index.batch.extend(before)
    stepped, grown = indexes
    assert Growth(stepped.step()) == grown.grow(1)
    assert [t.blocks for t in stepped.tables.held.values()] == [t.blocks for t in grown.tables.held.values()]
