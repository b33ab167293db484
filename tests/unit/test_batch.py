"""The batch's clock: what members count while they come, go and advance."""

from random import Random

import pytest
from by_hand import sequence

from testbed.core.batch import Batch, disband, passing_batch


def at_rest(seq_id, room, stored):
    seq = sequence(seq_id, room)
    seq.room, seq.stored = room, stored
    return seq


def test_counts_move_with_the_batch_and_stay_behind_on_leaving():
    batch, early, late = Batch(), at_rest(0, 10, 10), at_rest(1, 5, 5)
    batch.join(early)
    batch.extend(3)
    batch.advance(2)
    batch.join(late)
    batch.extend(1)
    assert [(s.room, s.stored) for s in (early, late)] == [(14, 12), (6, 5)]
    batch.leave(early)
    batch.extend(4)
    batch.advance(6)
    assert [(s.room, s.stored) for s in (early, late)] == [(14, 12), (10, 11)]
    assert (len(batch), batch.context, batch.longest) == (1, 10, 10)


@pytest.mark.parametrize("seed", range(5))
def test_the_clock_is_what_counting_each_member_would_give(seed):
    rng, batch, expected, members = Random(seed), Batch(), {}, {}
    for turn in range(600):
        choice = rng.random()
        if choice < 0.35:
            seq = at_rest(turn, room := rng.randrange(1, 60), stored := rng.randrange(room + 1))
            batch.join(seq)
            members[turn], expected[turn] = seq, [room, stored]
        elif choice < 0.6 and members:
            seq_id = rng.choice(list(members))
            seq = members.pop(seq_id)
            batch.leave(seq)
            assert [seq.room, seq.stored] == expected.pop(seq_id)
            if rng.random() < 0.5:  # it comes back with what it has
                batch.join(seq)
                members[seq_id], expected[seq_id] = seq, [seq.room, seq.stored]
        elif choice < 0.8:
            batch.extend(more := rng.randrange(4))
            expected = {seq_id: [room + more, stored] for seq_id, (room, stored) in expected.items()}
        else:
            batch.advance(more := rng.randrange(4))
            expected = {seq_id: [room, stored + more] for seq_id, (room, stored) in expected.items()}
        rooms = [room for room, _ in expected.values()]
        assert {seq_id: [seq.room, seq.stored] for seq_id, seq in members.items()} == expected
        assert (batch.longest, batch.context, len(batch)) == (max(rooms, default=0), sum(rooms), len(rooms))


def test_a_member_s_counts_are_the_batch_s_business():
    batch, seq = Batch(), at_rest(0, 4, 4)
    batch.join(seq)
    for count in ("room", "stored"):
        with pytest.raises(ValueError, match="moves with its batch"):
            setattr(seq, count, 5)


def test_a_passing_batch_leaves_nothing_behind():
    seqs = [at_rest(i, 4 + i, 3) for i in range(3)]
    batch = passing_batch(seqs)
    batch.extend(2)
    batch.advance(2)
    disband(batch)
    assert [(seq.room, seq.stored, seq.batch) for seq in seqs] == [(6, 5, None), (7, 5, None), (8, 5, None)]
