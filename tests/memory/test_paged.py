"""Blocks that are taken, shared, promised and given back, on pools of a few blocks; the margins of
the 2023 system.
"""

from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from manual_driver import admit, admit_and_prefill, extend, fork, paged, release, samples, sequence

from testbed.core.request import Request
from testbed.core.sequence import Batch, Sequence, passing_batch
from testbed.core.slots import GRANTED, Copy, Extent, Grant, Refusal, Usage, growth_of
from testbed.memory.paged.block_pool import BlockPool
from testbed.memory.paged.block_table import Tables
from testbed.memory.paged.paged import Paged, blocks_taken
from testbed.memory.paged.paged_2023 import Paged2023
from testbed.memory.policy import PoolSpec
from testbed.sched.mixed import Mixed2023, MixedPrefill
from testbed.sched.preemption import Recompute


def test_request_larger_than_the_pool_is_never_admitted():
    assert not isinstance(admit(paged(4), [sequence(0, 16)], 16), Refusal)
    assert admit(paged(4), [sequence(0, 17)], 17) is Refusal.NEVER
    policy = paged(4)
    admit_and_prefill(policy, [sequence(0, 1)], 1)
    assert admit(policy, [sequence(1, 16)], 16) is Refusal.LATER


def test_tables_list_one_object_for_each_block():
    """The memory map of a run keeps millions of extents, and compares most by their identity."""
    tables = []
    for _ in range(2):
        policy, seq = paged(8), sequence(0, 10)
        admit(policy, [seq], 10)
        tables.append(policy.table(seq))
    assert tables[0] == tables[1] == [Extent(0, 4), Extent(4, 4), Extent(8, 4)]
    assert all(one is other for one, other in zip(*tables, strict=True))


def test_watermark_stays_free_unless_the_pool_is_idle():
    policy = paged(10, watermark=0.15)  # 1.5 blocks are 2
    admit_and_prefill(policy, [sequence(0, 4)], 4)
    assert admit(policy, [sequence(1, 32)], 32) is Refusal.LATER
    assert not isinstance(admit(policy, [sequence(2, 28)], 28), Refusal)
    policy = paged(10, watermark=0.15)
    assert not isinstance(admit(policy, [sequence(3, 40)], 40), Refusal)


def test_samples_share_all_but_the_last_partial_block():
    policy, seqs = paged(), samples(10, count=3)
    admit_and_prefill(policy, seqs, 10)
    tables = [policy.table(seq) for seq in seqs]
    assert tables[0][:2] == tables[1][:2] == tables[2][:2]
    assert len({table[2] for table in tables}) == 3
    used = policy.usage()
    assert (used.live, used.held, used.saved) == (8 + 3 * 2, 8 + 3 * 4, 2 * 8)


def test_shared_block_is_copied_except_for_the_last_writer():
    policy, (parent, *children) = paged(), samples(6, count=3)
    admit_and_prefill(policy, [parent], 6)
    for child in children:
        fork(policy, parent, child)
    answer = extend(policy, [parent, *children], 1)
    assert answer.ops.copies == (Copy(4, 8, 4), Copy(4, 12, 4))
    assert policy.usage().live == 4 + 3 * 3


def test_preempted_group_leaves_no_pending_copies():
    """A group forks and is preempted before its next step; another one is given the same blocks,
    and forks too.
    """
    policy, batch = paged(), passing_batch([])
    for first in (0, 2):
        parent, child = samples(6, first=first)
        admit_and_prefill(policy, [parent], 6)
        batch.add(parent)
        fork(policy, parent, child)
        batch.add(child)
        policy.guaranteed_steps(
            batch
        )  # whatever the policy keeps on the batch is there from now on
        if not first:
            for seq in (parent, child):
                batch.remove(seq)
                release(policy, seq)
    assert len(policy.extend(batch, 1).ops.copies) == 1
    batch.extend(1)
    assert policy.table(parent)[-1] != policy.table(child)[-1]


def test_a_beam_cannot_continue_from_one_of_another_length():
    policy, (one, two) = paged(), samples(8)
    admit_and_prefill(policy, [one], 8)
    admit_and_prefill(policy, [two], 5)
    with pytest.raises(ValueError, match=r"\b5 .*\b8\b"):
        policy.fork(one, two)


def test_replaced_beam_frees_its_last_blocks():
    policy, (one, two) = paged(), samples(8)
    admit_and_prefill(policy, [one], 8)
    fork(policy, one, two)
    extend(policy, [one, two], 2)
    assert policy.usage().held == 16
    policy.fork(one, two)
    assert policy.table(one) == policy.table(two)
    assert (policy.usage().live, policy.usage().held, policy.usage().saved) == (10, 12, 12)


def resident(policy, batch, request_id, num_tokens):
    request = Request(request_id, arrival_ps=0, prompt_len=num_tokens, output_len=9)
    seq = Sequence(len(batch), request.incoming)
    assert policy.admit([seq], num_tokens) == [GRANTED]
    seq.num_slots = seq.num_stored = num_tokens
    batch.add(seq)
    return seq


@pytest.mark.parametrize(("kind", "free"), [(Paged, 2), (Paged2023, 1)])
def test_watermark_is_rounded_down_to_whole_blocks(kind, free):
    """A share of 0.19 of 8 blocks are 1.52: after 5 blocks, a sixth leaves 2, a seventh 1 and an
    eighth none.
    """
    policy = kind(PoolSpec(32, 32), block_size=4, watermark=0.19)
    batch = Batch()
    resident(policy, batch, 0, 20)
    while policy.usage().free // 4 > free:
        resident(policy, batch, 8 - policy.usage().free // 4, 4)
    waiting = Request(99, arrival_ps=0, prompt_len=4, output_len=9)
    assert policy.admit([Sequence(99, waiting.incoming)], 4) is Refusal.LATER


@pytest.mark.parametrize(("kind", "answer"), [(Paged, Grant), (Paged2023, Refusal)])
def test_step_needs_a_free_block_for_each_sequence(kind, answer):
    """Two sequences with free slots in their last blocks need none, but the pool has none left
    either.
    """
    policy, batch = kind(PoolSpec(8, 8), block_size=4, watermark=0.0), Batch()
    for request_id in range(2):
        resident(policy, batch, request_id, 2)
    assert isinstance(policy.extend(batch, 1), answer)
    assert policy.guaranteed_steps(batch) == (2 if kind is Paged else 0)


def is_served(groups, free, num_steps):
    """True if each group in turn finds a free block of 4 for each of its sequences, unless it is
    alone.
    """
    for step in range(num_steps):
        for width, num_tokens in groups:
            taken = width if (num_tokens + step) % 4 == 0 else 0
            if free < (width if len(groups) > 1 else taken):
                return False
            free -= taken
    return True


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 12)), min_size=1, max_size=4),
    st.integers(0, 12),
    st.integers(1, 12),
)
@example([(4, 4), (2, 4)], 3, 3)  # of 9 blocks of 4 six are held: the first step takes 6 of 3
@example(
    [(4, 4), (2, 4)], 8, 3
)  # six are taken, and then the four ask for four more though 2 are left
def test_many_steps_at_once_are_granted_exactly_where_single_steps_are(groups, spare, num_steps):
    needed = sum(width * -(-num_tokens // 4) for width, num_tokens in groups)
    policies = [
        Paged2023(PoolSpec(4 * (needed + spare), 64), block_size=4, watermark=0.0) for _ in range(2)
    ]
    batches = [Batch(), Batch()]
    for policy, batch in zip(policies, batches, strict=True):
        for request_id, (width, num_tokens) in enumerate(groups):
            for _ in range(width):
                resident(policy, batch, request_id, num_tokens)
    at_once = policies[0].extend(batches[0], num_steps)
    for _ in range(num_steps):
        answer = policies[1].extend(batches[1], 1)
        if isinstance(answer, Refusal):
            break
        batches[1].extend(1)
    assert (
        isinstance(at_once, Refusal)
        == isinstance(answer, Refusal)
        == (not is_served(groups, spare, num_steps))
    )


@pytest.mark.parametrize(("kind", "num_admitted"), [(MixedPrefill, 2), (Mixed2023, 3)])
def test_max_num_seqs_counts_groups(kind, num_admitted):
    """Groups of two, at most four: two groups are four sequences, but with two groups a third adds
    only its two.
    """
    scheduler = kind(
        Paged(PoolSpec(1024, 64)), Recompute(), max_num_batched_tokens=100, max_num_seqs=4
    )
    for request_id in range(4):
        scheduler.add(
            Request(request_id, arrival_ps=0, prompt_len=4, output_len=9, num_seqs=2).incoming
        )
    scheduler.plan()
    assert len(scheduler.state.running) == num_admitted


def test_slots_that_are_cached_or_in_transit_are_accounted_for():
    used = Usage(
        total=10,
        live=1,
        held=2,
        allocated=4,
        cached=3,
        free=2,
        largest_free=5,
        saved=0,
        in_transit=1,
    )
    paged(kind=type("Caching", (Paged,), {"usage": lambda self: used})).check()


def test_blocks_are_taken_lowest_first():
    assert BlockPool(4).take(3) == [0, 1, 2]
    assert BlockPool(4).take(0) == []


def test_shared_block_is_free_after_its_last_release():
    pool = BlockPool(4)
    blocks = pool.take(2)
    pool.share(blocks)
    pool.share(blocks[:1])
    assert ([pool.ref_count(b) for b in blocks], pool.num_saved) == ([3, 2], 3)
    assert [pool.put(list(blocks)), pool.put(list(blocks)), pool.put(blocks[:1])] == [0, 1, 1]
    assert (sorted(pool.free), pool.sharers, pool.num_saved) == ([0, 1, 2, 3], {}, 0)


LENGTHS = st.lists(st.integers(1, 1200), min_size=1, max_size=5)


@given(st.sampled_from([1, 3, 16, 256]), LENGTHS, st.integers(1, 1100))
def test_steps_at_once_take_the_blocks_of_the_same_steps_one_by_one(size, lengths, steps):
    policies = [Paged(PoolSpec(1 << 15, 1 << 15), size) for _ in range(2)]
    (at_once, batch), (one_by_one, other) = [(each, batch_of(each, lengths)) for each in policies]
    assert at_once.guaranteed_steps(batch) >= steps
    grown, events = at_once.extend(batch, steps).growth, []
    for step in range(steps):
        events.append((step, one_by_one.extend(other, 1).growth.slots))
        other.extend(1)
    assert grown == growth_of(events)
    assert [*map(at_once.table, batch)] == [*map(one_by_one.table, other)]


@given(st.integers(0, 300), st.integers(0, 70), st.integers(1, 256))
def test_blocks_that_are_taken_evenly(first, count, size):
    events = [(first + i * size, size) for i in range(count)]
    assert blocks_taken(first, count, size) == growth_of(events)


def batch_of(policy, lengths):
    """A batch of sequences that have slots for so many tokens each."""
    batch = Batch()
    for i, num_tokens in enumerate(lengths):
        resident(policy, batch, i, num_tokens)
    return batch


STEPS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=12)


@given(st.integers(1, 9), st.lists(STEPS, max_size=6))
def test_a_last_block_is_replaced_as_any_end_of_a_table(prompt_len, searches):
    """A beam's last block alone has a path of its own; the plain one does the same."""

    def replace_end(tables, table, block, num_slots):
        tables._replace_end(table, [block], num_slots)

    states = []
    for patched in (Tables._replace_last, replace_end):
        policy, seqs = paged(64), samples(prompt_len, count=4)
        with patch.object(Tables, "_replace_last", patched):
            admit_and_prefill(policy, seqs, prompt_len)
            for forks in searches:
                for parent, child in forks:
                    if parent != child:
                        fork(policy, seqs[parent], seqs[child])
                extend(policy, seqs, 1)
        states.append((policy.usage(), [policy.table(seq) for seq in seqs], policy._pool.free))
    assert states[0] == states[1]
