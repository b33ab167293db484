"""Memory policies with changed answers, and those that break one clause each."""

import random
from dataclasses import replace

from testbed.core.slots import GRANTED, HOST, NO_GROWTH, Grant, Granular, Refusal
from testbed.memory.contiguous.contiguous import ContiguousMax
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import host

BROKEN = {}


class Breaks:
    """A base of policies that break one of these clauses; the check() of `silent` ones does not notice it."""

    def __init_subclass__(cls, clauses, silent=False):
        BROKEN[cls] = clauses
        if silent:
            cls.check = lambda self: None


def changed(base, **changes):
    """Methods that answer change(policy, the base's answer, *arguments of the call)."""

    def method(call, change):
        return lambda self, *arguments: change(self, getattr(base, call)(self, *arguments), *arguments)

    return {call: method(call, change) for call, change in changes.items()}


def altered(name, base=Paged, **changes):
    """A policy of this name, some of whose answers are changed."""
    return type(name, (base,), changed(base, **changes))


def planted(name, clauses, silent=False, **changes):
    """A policy of this name: paged memory, some of whose answers are changed."""
    type(name, (Breaks, Paged), changed(Paged, **changes), clauses=clauses, silent=silent)


def instead(wrong, other):
    return lambda policy, answer, *arguments: other if answer is wrong else answer


def granted(change):
    """Changes a Grant, and leaves a Refusal as it is."""
    return lambda policy, answer, *arguments: change(answer) if isinstance(answer, Grant) else answer


def with_moves(answer, change):
    """The answer, each of its moves changed."""
    return granted(lambda one: one._replace(ops=one.ops._replace(moves=tuple(map(change, one.ops.moves)))))(
        None, answer
    )


def backwards(move):
    return move._replace(copies=tuple(copy._replace(length=-copy.length) for copy in move.copies))


def without_growth_of_copies(answer):
    copied = sum(copy.length for copy in answer.ops.copies)
    return answer._replace(growth=answer.growth._replace(slots=answer.growth.slots - copied)) if copied else answer


planted("RefusesForeverWhenFull", {3}, admit=instead(Refusal.LATER, Refusal.NEVER))
planted("DefersWhatCannotFit", {3}, admit=instead(Refusal.NEVER, Refusal.LATER))
planted("UnderstatesMaxSeqLen", {3}, max_seq_len=lambda policy, longest, *_: longest - 1)
planted("OverstatesMaxSeqLen", {3}, max_seq_len=lambda policy, longest, *_: longest + 1)
planted("OverstatesGuaranteedSteps", {6}, guaranteed_steps=lambda *_: 1 << 60)
planted("OmitsGrowth", {7}, extend=granted(lambda answer: answer._replace(growth=NO_GROWTH)))
planted("ForgetsThatCopiesGrow", {7}, extend=granted(without_growth_of_copies))
planted("OmitsCopyOnWrite", {5, 7}, extend=granted(lambda one: one._replace(ops=one.ops._replace(copies=()))))
planted("ReturnsNone", {10}, extend=lambda *_: None)
planted("CountsInATuple", {10}, usage=lambda policy, usage: tuple(usage))
planted("MisstatesItsFootprint", {11}, footprint=lambda policy, *_: Granular(2 * policy.block_size))
planted("OmitsSwapInCopies", {5}, move=lambda policy, answer, seqs, tier: (
    Grant() if tier != HOST and isinstance(answer, Grant) else answer
))  # fmt: skip
planted("MovesToNowhere", {4}, move=lambda policy, answer, seqs, tier: (
    with_moves(answer, lambda move: move._replace(target="disk")) if tier == HOST else answer
))  # fmt: skip
planted("MovesBackwards", {10}, move=lambda policy, answer, *_: with_moves(answer, backwards))
planted("OmitsPrefixCopy", {8}, admit=lambda policy, answers, *_: (  # of a registered prefix's partial last block
    answers if isinstance(answers, Refusal) else [Grant(grant.num_cached) for grant in answers]
))  # fmt: skip
planted("AssumesPromptStoredAfterPreemption", {8}, admit=lambda policy, answers, seqs, num_tokens: (
    [Grant(min(num_tokens, seqs[0].prompt_len) - 1)] * len(seqs)
    if isinstance(answers, list) and seqs[0].num_preemptions else answers
))  # fmt: skip


class LeaksOnRefusal(Breaks, Paged, clauses={1}):
    def admit(self, seqs, num_tokens):
        answer = super().admit(seqs, num_tokens)
        if answer is Refusal.LATER and self._pool.free:
            self._pool.free.pop()
        return answer


class SharesPartialBlock(Breaks, Paged, clauses={4, 5, 8}, silent=True):
    def _allocate_tables(self, seqs, num_tokens, found):
        blocks = super()._allocate_tables(seqs[:1], num_tokens, found)
        for seq in seqs[1:]:
            self._tables.fork(seqs[0], seq)
        return blocks


class RefusalDependsOnCallCount(Breaks, Paged, clauses={2, 9}):
    requested = 0

    def admit(self, seqs, num_tokens):
        self.requested += 1
        if self.requested % 3 == 1 and self._tables.held:
            return Refusal.LATER
        return super().admit(seqs, num_tokens)


class LeaksBlockOnRelease(Breaks, Paged, clauses={4}, silent=True):
    def release(self, seq):
        super().release(seq)
        if len(self._pool.free) > 3:
            self._pool.free.pop()


class AllocatesBlockTwice(Breaks, Paged, clauses={4, 5, 6, 7}, silent=True):
    def extend(self, batch, num_tokens):
        before = list(self._pool.free)
        answer = super().extend(batch, num_tokens)
        if len(self._pool.free) < len(before):
            self._pool.free[-1:] = [before[-1]]
        return answer


class AllocatesAtRandom(Breaks, Paged, clauses={9}):
    def admit(self, seqs, num_tokens):
        random.shuffle(self._pool.free)
        return super().admit(seqs, num_tokens)


class ReadsOutputLenInAdmit(Breaks, Paged, clauses={10}):
    def admit(self, seqs, num_tokens):
        return super().admit(seqs, seqs[0].prompt_len + self.output_len[seqs[0].request_id])


class GrantsWithoutAllocating(Breaks, ContiguousMax, clauses={4, 7, 10}):
    def extend(self, batch, num_tokens):
        return GRANTED


class Raises(Breaks, Paged, clauses={10}):
    def release(self, seq):
        raise IndexError("no such thing")


class DeclaresMoves(Breaks, ContiguousMax, clauses={10}):
    moves_tiers = True


class LeaksHostBlocksOnSwapIn(Breaks, Paged, clauses={3}, silent=True):
    def move(self, seqs, tier):
        before = list(self._host.pool.free)
        answer = super().move(seqs, tier)
        if tier != HOST and isinstance(answer, Grant):
            self._host.pool.free = before
        return answer


class AllocatesHostBlockTwice(Breaks, Paged, clauses={4, 5}, silent=True):
    """The last block of the host is given to two."""

    def move(self, seqs, tier):
        answer = super().move(seqs, tier)
        free = self._host.pool.free
        if tier == HOST and isinstance(answer, Grant) and not free:
            free.append(answer.ops.moves[0].copies[-1].dst // self.block_size)
        return answer


class TakesTwiceThePool(Breaks, Paged, clauses={4}):
    def __init__(self, pool, **options):
        super().__init__(replace(pool, num_slots=2 * pool.num_slots), **options)


class TakesTwiceTheHost(Breaks, Paged, clauses={4}):
    def __init__(self, pool, **options):
        super().__init__(replace(pool, tiers=host(2 * pool.slots_of(HOST))), **options)


class ShrinksABlockLess(Breaks, Paged, clauses={4, 11}, silent=True):
    def shrink(self, seq, num_tokens):
        return super().shrink(seq, max(num_tokens - self.block_size, 0))


class SeatsHalf(Breaks, Paged, clauses={3, 4, 5, 10}):
    """Only the first half of a group that comes back gets slots."""

    def admit(self, seqs, num_tokens):
        answers = super().admit(seqs[: -(-len(seqs) // 2)], num_tokens)
        return answers if isinstance(answers, Refusal) else answers + [GRANTED] * (len(seqs) - len(answers))


class WritesWhereOthersRead(Breaks, Paged, clauses={5}):
    """No shared block is copied before it is written."""

    def extend(self, batch, num_tokens):
        for index in batch.indexes.values():
            index.tails.clear()
        return super().extend(batch, num_tokens)
