"""Memory policies that break one clause each."""

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


class LeaksOnRefusal(Breaks, Paged, clauses={1}):
    def admit(self, seqs, num_tokens):
        answer = super().admit(seqs, num_tokens)
        if answer is Refusal.LATER and self._pool.free:
            self._pool.free.pop()
        return answer


class SharesPartialBlock(Breaks, Paged, clauses={4, 5, 8}, silent=True):
    def _allocate_tables(self, seqs, each, common, found):
        return super()._allocate_tables(seqs, each, each, found)


class RefusalDependsOnCallCount(Breaks, Paged, clauses={2, 9}):
    requested = 0

    def admit(self, seqs, num_tokens):
        self.requested += 1
        if self.requested % 3 == 1 and self._tables.held:
            return Refusal.LATER
        return super().admit(seqs, num_tokens)


class RefusesForeverWhenFull(Breaks, Paged, clauses={3}):
    def admit(self, seqs, num_tokens):
        answer = super().admit(seqs, num_tokens)
        return Refusal.NEVER if answer is Refusal.LATER else answer


class DefersWhatCannotFit(Breaks, Paged, clauses={3}):
    def admit(self, seqs, num_tokens):
        answer = super().admit(seqs, num_tokens)
        return Refusal.LATER if answer is Refusal.NEVER else answer


class UnderstatesMaxSeqLen(Breaks, Paged, clauses={3}):
    def max_seq_len(self, prompt_len, num_seqs):
        return super().max_seq_len(prompt_len, num_seqs) - 1


class OverstatesMaxSeqLen(Breaks, Paged, clauses={3}):
    def max_seq_len(self, prompt_len, num_seqs):
        return super().max_seq_len(prompt_len, num_seqs) + 1


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


class OverstatesGuaranteedSteps(Breaks, Paged, clauses={6}):
    def guaranteed_steps(self, batch):
        return 1 << 60


class OmitsGrowth(Breaks, Paged, clauses={7}):
    def extend(self, batch, num_tokens):
        answer = super().extend(batch, num_tokens)
        return answer._replace(growth=NO_GROWTH) if isinstance(answer, Grant) else answer


class AllocatesAtRandom(Breaks, Paged, clauses={9}):
    def admit(self, seqs, num_tokens):
        random.shuffle(self._pool.free)
        return super().admit(seqs, num_tokens)


class ReadsOutputLenInAdmit(Breaks, Paged, clauses={10}):
    def admit(self, seqs, num_tokens):
        return super().admit(seqs, seqs[0].prompt_len + self.output_len[seqs[0].request_id])


class OmitsCopyOnWrite(Breaks, Paged, clauses={5, 7}):
    def extend(self, batch, num_tokens):
        answer = super().extend(batch, num_tokens)
        return answer._replace(ops=answer.ops._replace(copies=())) if isinstance(answer, Grant) else answer


class GrantsWithoutAllocating(Breaks, ContiguousMax, clauses={4, 7, 10}):
    def extend(self, batch, num_tokens):
        return GRANTED


class ReturnsNone(Breaks, Paged, clauses={10}):
    def extend(self, batch, num_tokens):
        super().extend(batch, num_tokens)


class Raises(Breaks, Paged, clauses={10}):
    def release(self, seq):
        raise IndexError("no such thing")


class DeclaresMoves(Breaks, ContiguousMax, clauses={10}):
    moves_tiers = True


class OmitsPrefixCopy(Breaks, Paged, clauses={8}):
    """A registered prefix's partial last block is not copied."""

    def admit(self, seqs, num_tokens):
        answers = super().admit(seqs, num_tokens)
        return answers if isinstance(answers, Refusal) else [Grant(grant.num_cached) for grant in answers]


class AssumesPromptStoredAfterPreemption(Breaks, Paged, clauses={8}):
    """Whoever was preempted is taken to have its prompt still."""

    def admit(self, seqs, num_tokens):
        answers = super().admit(seqs, num_tokens)
        if isinstance(answers, list) and seqs[0].num_preemptions:
            return [Grant(min(num_tokens, seqs[0].prompt_len) - 1)] * len(seqs)
        return answers


class MisstatesItsFootprint(Breaks, Paged, clauses={11}):
    def footprint(self, seq):
        return Granular(2 * self.block_size)


class OmitsSwapInCopies(Breaks, Paged, clauses={5}):
    def move(self, seqs, tier):
        answer = super().move(seqs, tier)
        return Grant() if tier != HOST and isinstance(answer, Grant) else answer


class LeaksHostBlocksOnSwapIn(Breaks, Paged, clauses={3}, silent=True):
    def move(self, seqs, tier):
        before = list(self._host._pool.free)
        answer = super().move(seqs, tier)
        if tier != HOST and isinstance(answer, Grant):
            self._host._pool.free = before
        return answer


class AllocatesHostBlockTwice(Breaks, Paged, clauses={4, 5}, silent=True):
    """The last block of the host is given to two."""

    def move(self, seqs, tier):
        answer = super().move(seqs, tier)
        free = self._host._pool.free
        if tier == HOST and isinstance(answer, Grant) and not free:
            free.append(answer.ops.moves[0].copies[-1].dst // self.block_size)
        return answer


class TakesTwiceThePool(Breaks, Paged, clauses={4}):
    def __init__(self, pool, **options):
        super().__init__(replace(pool, num_slots=2 * pool.num_slots), **options)


class CountsInATuple(Breaks, Paged, clauses={10}):
    def usage(self):
        return tuple(super().usage())


class TakesTwiceTheHost(Breaks, Paged, clauses={4}):
    def __init__(self, pool, **options):
        super().__init__(replace(pool, tiers=host(2 * pool.slots_of(HOST))), **options)


class MovesToNowhere(Breaks, Paged, clauses={4}):
    def move(self, seqs, tier):
        answer = super().move(seqs, tier)
        return with_moves(answer, lambda move: move._replace(target="disk")) if tier == HOST else answer


class MovesBackwards(Breaks, Paged, clauses={10}):
    def move(self, seqs, tier):
        def back(move):
            return move._replace(copies=tuple(copy._replace(length=-copy.length) for copy in move.copies))

        return with_moves(super().move(seqs, tier), back)


def with_moves(answer, changed):
    """The answer, each of its moves changed."""
    if isinstance(answer, Refusal):
        return answer
    return answer._replace(ops=answer.ops._replace(moves=tuple(map(changed, answer.ops.moves))))


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


class ForgetsThatCopiesGrow(Breaks, Paged, clauses={7}):
    """The blocks that copies take are not in the growth."""

    def extend(self, batch, num_tokens):
        answer = super().extend(batch, num_tokens)
        copied = sum(copy.length for copy in answer.ops.copies) if isinstance(answer, Grant) else 0
        return answer._replace(growth=answer.growth._replace(slots=answer.growth.slots - copied)) if copied else answer
