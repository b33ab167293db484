"""The free blocks that the 2023 system requires of a step, by a visit of few groups and of all."""

from itertools import groupby
from operator import attrgetter

from counted_calls import calls_of
from hypothesis import example, given
from hypothesis import strategies as st
from manual_driver import admit_and_prefill, paged, release, samples, sequence

from testbed.core.sequence import Batch
from testbed.core.slots import Refusal
from testbed.memory.paged.copy_on_write import copying_writers
from testbed.memory.paged.paged_2023 import Paged2023


def requested_of_all(batch, num_steps, writers):
    """`GroupIndex.requested` by a visit of each group at each step, for blocks of four."""
    most = taken = 0
    copying = {table.seq.seq_id for table in writers}
    for step in range(num_steps):
        for _, members in groupby(batch, attrgetter("request_id")):
            group = list(members)
            most = max(most, taken + len(group))
            full = [(seq.num_slots + step) % 4 == 0 for seq in group]
            taken += sum(
                is_full or seq.seq_id in copying for seq, is_full in zip(group, full, strict=True)
            )
        copying = set()
    return most


def batch_of_groups(policy, groups, num_steps):
    """A batch of groups, of so many sequences and tokens each, that has taken num_steps steps; then
    the beams of some groups go on from their first one.
    """
    batch, beams = Batch(), []
    for width, num_tokens, is_beams in groups:
        seqs = samples(num_tokens, width, first=len(batch))
        admit_and_prefill(policy, seqs, num_tokens)
        for seq in seqs:
            batch.add(seq)
        beams += [(seqs[0], seq) for seq in seqs[1:] if is_beams]
    policy.extend(batch, num_steps)
    batch.extend(num_steps)
    for parent, child in beams:
        policy.fork(parent, child)
    return batch


GROUPS = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 12), st.booleans()), min_size=1)


@given(GROUPS, st.integers(1, 4), st.sets(st.integers(0, 12)), st.integers(1, 12))
@example([(1, 5, False), (2, 5, True)], 1, set(), 1)  # two are required, then one is copied
def test_few_groups_require_as_much_as_all(groups, num_before, leaving, num_steps):
    policy = paged(1 << 10, Paged2023)
    batch = batch_of_groups(policy, groups, num_before)
    policy.guaranteed_steps(batch)  # builds the index
    index = batch.indexes[policy]
    for seq_id in leaving & batch.sequences.keys():
        seq = batch.sequences[seq_id]
        batch.remove(seq)
        release(policy, seq)
    writers = copying_writers(index.tables, index.tails.values())
    taken = index.needed(num_steps) + len(writers)
    few = max(taken, index.requested(num_steps, writers, taken))
    assert few == max(taken, requested_of_all(batch, num_steps, writers))


def calls_of_refused_step(num_seqs):
    """Python calls of a step of num_seqs sequences, with room in their blocks, in a full pool."""
    policy, batch = paged(num_seqs, Paged2023), Batch()
    for seq_id in range(num_seqs):
        seq = sequence(seq_id, 2)
        admit_and_prefill(policy, [seq], 2)
        batch.add(seq)
    policy.guaranteed_steps(batch)  # builds the index
    answers = []
    calls = calls_of(lambda: answers.append(policy.extend(batch)))
    assert answers == [Refusal.LATER]
    return calls


def test_a_step_near_the_end_of_the_pool_visits_few_sequences():
    assert calls_of_refused_step(100) == calls_of_refused_step(5)
