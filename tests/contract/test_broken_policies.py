"""The contract catches a policy that breaks a clause, names the clause and shows the calls: a check that can fail."""

import random

import pytest

from testbed.contract import check_policy
from testbed.core.slots import GRANTED, Grant, Refusal
from testbed.memory.contiguous.contiguous import ContiguousMax
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.memory.prefix_cache.prefix_index import PrefixIndex

POOL = PoolSpec(num_slots=400, max_len=256, num_host_slots=200)


class LeaksOnRefusal(Paged):
    def admit(self, seq, num_tokens):
        answer = super().admit(seq, num_tokens)
        if answer is Refusal.LATER and self._pool.free:
            self._pool.free.pop()
        return answer


class KeepsTheFirst(Paged):
    def admit_all(self, seqs, num_tokens):
        answer = super().admit_all(seqs, num_tokens)
        if answer is Refusal.LATER:
            self.admit(seqs[0], 1)
        return answer


class SharesWhatIsWritten(Paged):
    def admit_all(self, seqs, num_tokens):
        answer = self.admit(seqs[0], num_tokens)
        if isinstance(answer, Refusal):
            return answer
        for seq in seqs[1:]:
            self.fork(seqs[0], seq)
        return [answer, *[Grant(seqs[0].prompt_len)] * (len(seqs) - 1)]


class ChangesItsMind(Paged):
    asked = 0

    def admit(self, seq, num_tokens):
        self.asked += 1
        if self.asked % 3 == 1 and self._tables:
            return Refusal.LATER
        return super().admit(seq, num_tokens)


class SaysNeverWhenBusy(Paged):
    def admit(self, seq, num_tokens):
        answer = super().admit(seq, num_tokens)
        return Refusal.NEVER if answer is Refusal.LATER else answer


class ForgetsBlocks(Paged):
    def release(self, seq):
        super().release(seq)
        if len(self._pool.free) > 3:
            self._pool.free.pop()

    def check(self):
        pass


class HandsOutTwice(Paged):
    def extend(self, seqs, num_tokens):
        before = list(self._pool.free)
        answer = super().extend(seqs, num_tokens)
        if len(self._pool.free) < len(before):
            self._pool.free[-1:] = [before[-1]]
        return answer

    def check(self):
        pass


class PromisesTheMoon(Paged):
    def horizon(self, seqs, limit):
        return limit


class CountsDouble(Paged):
    def extend(self, seqs, num_tokens):
        answer = super().extend(seqs, num_tokens)
        if isinstance(answer, Grant) and num_tokens > 1:
            self._tables.live += 1
        return answer

    def check(self):
        pass


class Gambles(Paged):
    def admit(self, seq, num_tokens):
        random.shuffle(self._pool.free)
        return super().admit(seq, num_tokens)


class Peeks(Paged):
    def admit(self, seq, num_tokens):
        return super().admit(seq, seq.final_len)


class NeverCopies(Paged):
    def fork(self, parent, child):
        ops = super().fork(parent, child)
        self._pool.sharers.clear()
        return ops

    def check(self):
        pass


class GrantsNothing(ContiguousMax):
    def extend(self, seqs, num_tokens):
        return GRANTED


class TrustsTheHash(PrefixCaching):
    def __init__(self, pool, block_size):
        super().__init__(pool, block_size, hash_of=lambda pair: pair[0] & 1)
        self._pool.index = TrustingIndex(self._pool.num_blocks, lambda pair: pair[0] & 1)

    def check(self):
        pass


class TrustingIndex(PrefixIndex):
    def match(self, contents):
        nodes = [self._nodes.get(code) for code in self.chain(contents)]
        return nodes[: nodes.index(None)] if None in nodes else nodes


class PublishesTooEarly(PrefixCaching):
    def _publish(self):
        for seq_id in self._unpublished:
            self._tables[seq_id].offset += self.block_size - 1
        waiting = list(self._unpublished)
        super()._publish()
        for seq_id in waiting:
            self._tables[seq_id].offset -= self.block_size - 1


class NeverPublishes(PrefixCaching):
    def _publish(self):
        pass


class EvictsWhatIsHeld(PrefixCaching):
    def _hold(self, seq, num_tokens, nodes):
        parked = [node for node in nodes if node.parked]
        super()._hold(seq, num_tokens, nodes)
        self._pool.free += [node.block for node in parked]

    def check(self):
        pass


BROKEN = {
    LeaksOnRefusal: {1, 4},
    KeepsTheFirst: {1},
    SharesWhatIsWritten: {5},
    ChangesItsMind: {2},
    SaysNeverWhenBusy: {3},
    ForgetsBlocks: {4},
    HandsOutTwice: {4, 5, 7},
    PromisesTheMoon: {6},
    CountsDouble: {4, 7},
    Gambles: {9},
    Peeks: {10},
    NeverCopies: {4, 5},
    GrantsNothing: {4, 7, 10},
    TrustsTheHash: {5, 8},
    PublishesTooEarly: {8},
    NeverPublishes: {8},
    EvictsWhatIsHeld: {4, 5, 8},
}


@pytest.mark.parametrize("policy", BROKEN)
def test_the_broken_clause_is_named_with_the_calls(policy):
    broken = check_policy(lambda: policy(POOL, block_size=8), max_examples=200, shrink=False)
    assert broken is not None
    assert broken.clause in BROKEN[policy], str(broken)
    assert broken.calls


def test_the_shortest_calls_are_shown():
    broken = check_policy(lambda: Peeks(POOL, block_size=8))
    assert len(broken.calls) == 1
    assert broken.calls[0].startswith("admit(")
