"""A refused step that is asked for again is answered as if it were asked for the first time."""

import pytest
from counted_calls import calls_of
from hypothesis import example, given
from hypothesis import strategies as st
from manual_driver import admit_and_prefill, paged, release, samples, sequence

from testbed.core.sequence import Batch
from testbed.core.slots import Refusal
from testbed.memory.paged.paged import Paged
from testbed.memory.paged.paged_2023 import Paged2023
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching

CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("extend"), st.integers(1, 3)),
        st.tuples(st.just("join"), st.integers(1, 3)),
        st.tuples(st.just("leave"), st.integers(0, 5)),
        st.tuples(st.just("fork"), st.integers(0, 5)),
        st.tuples(st.just("release"), st.just(0)),
    ),
    max_size=40,
)

# The step is refused, then it copies blocks of beams, and the step after it takes none.
BEAMS = [("join", 1), ("extend", 2), ("join", 2), ("join", 2), ("extend", 1), ("fork", 1)]
BEAMS += [("release", 0), ("extend", 1), ("extend", 1)]


class Steps:
    """A batch in a pool of ten blocks, beside sequences in no batch that hold five of them."""

    def __init__(self, kind, *, asks_anew):
        self.policy, self.batch, self.asks_anew = paged(10, kind), Batch(), asks_anew
        self.others = [sequence(100 + i, 4) for i in range(5)]
        self.next_id = 0
        for seq in self.others:
            admit_and_prefill(self.policy, [seq], 4)

    def extend(self, num_tokens):
        index = self.batch.indexes.get(self.policy)
        if self.asks_anew and index is not None:
            index.lacking = 0
        if not self.batch.sequences:
            return None
        answer = self.policy.extend(self.batch, num_tokens)
        if not isinstance(answer, Refusal):
            self.batch.extend(num_tokens)
            self.batch.advance(num_tokens)
        return answer

    def join(self, width):
        seqs = samples(2, width, first=self.next_id)
        self.next_id += width
        answers = admit_and_prefill(self.policy, seqs, 2)
        if not isinstance(answers, Refusal):
            for seq in seqs:
                self.batch.add(seq)
        return answers

    def leave(self, place):
        for seq in list(self.batch)[place : place + 1]:
            self.batch.remove(seq)
            release(self.policy, seq)

    def fork(self, place):
        for parent, child in zip(self.batch, list(self.batch)[place:], strict=False):
            are_beams = parent is not child and parent.request_id == child.request_id
            if are_beams and parent.slots_offset == child.slots_offset:
                self.policy.fork(parent, child)

    def release(self, _):
        if self.others:
            release(self.policy, self.others.pop())


@pytest.mark.parametrize("kind", [Paged, Paged2023, PrefixCaching])
@given(changes=CHANGES)
@example(changes=BEAMS)
def test_a_refused_step_is_answered_as_if_asked_anew(kind, changes):
    again, anew = Steps(kind, asks_anew=False), Steps(kind, asks_anew=True)
    for name, number in changes:
        assert getattr(again, name)(number) == getattr(anew, name)(number)
        assert again.policy.usage() == anew.policy.usage()
        assert again.policy._pool.free == anew.policy._pool.free


def test_a_refused_step_is_not_computed_again():
    calls = []
    for asks_anew in (False, True):
        steps = Steps(Paged2023, asks_anew=asks_anew)
        for _ in range(5):
            steps.join(1)
        steps.extend(1)
        calls.append(calls_of(lambda steps=steps: steps.extend(1)))
    assert calls[0] < calls[1]
