"""The batch's clock: what members count while they come, go and advance."""

from random import Random

import pytest
from manual_driver import sequence
from refusals import refuses

from testbed.core.sequence import Batch, disband, passing_batch


def unbatched(seq_id, num_slots, num_stored):
    seq = sequence(seq_id, num_slots)
    seq.num_slots, seq.num_stored = num_slots, num_stored
    return seq


@pytest.mark.parametrize("seed", range(5))
def test_batch_counts_equal_counts_per_member(seed):
    rng, batch, expected, members = Random(seed), Batch(), {}, {}
    for turn in range(600):
        choice = rng.random()
        if choice < 0.35:
            seq = unbatched(turn, num_slots := rng.randrange(1, 60), num_stored := rng.randrange(num_slots + 1))
            batch.add(seq)
            members[turn], expected[turn] = seq, [num_slots, num_stored]
        elif choice < 0.6 and members:
            seq_id = rng.choice(list(members))
            seq = members.pop(seq_id)
            batch.remove(seq)
            assert [seq.num_slots, seq.num_stored] == expected.pop(seq_id)
            if rng.random() < 0.5:  # it comes back with what it has
                batch.add(seq)
                members[seq_id], expected[seq_id] = seq, [seq.num_slots, seq.num_stored]
        elif choice < 0.8:
            batch.extend(more := rng.randrange(4))
            expected = {seq_id: [num_slots + more, num_stored] for seq_id, (num_slots, num_stored) in expected.items()}
        else:
            batch.advance(more := rng.randrange(4))
            expected = {seq_id: [num_slots, num_stored + more] for seq_id, (num_slots, num_stored) in expected.items()}
        slot_counts = [num_slots for num_slots, _ in expected.values()]
        assert {seq_id: [seq.num_slots, seq.num_stored] for seq_id, seq in members.items()} == expected
        assert (batch.max_context_len, batch.context, len(batch)) == (
            max(slot_counts, default=0),
            sum(slot_counts),
            len(slot_counts),
        )


def test_member_counts_cannot_be_set_directly():
    batch, seq = Batch(), unbatched(0, 4, 4)
    batch.add(seq)
    for count in ("num_slots", "num_stored"):
        refuses("is set by its batch", setattr, seq, count, 5, error=ValueError)


def test_disbanded_temporary_batch_updates_its_members():
    seqs = [unbatched(i, 4 + i, 3) for i in range(3)]
    batch = passing_batch(seqs)
    batch.extend(2)
    batch.advance(2)
    disband(batch)
    assert [(seq.num_slots, seq.num_stored, seq.batch) for seq in seqs] == [(6, 5, None), (7, 5, None), (8, 5, None)]
