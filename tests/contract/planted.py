"""Memory policies that break one clause each."""

import random

from ring import Window

from testbed.core.slots import GRANTED, NO_GROWTH, Extent, Grant, Granular, Refusal
from testbed.memory.contiguous.contiguous import ContiguousMax
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import MemoryPolicy


class LeaksOnRefusal(Paged):
    def admit(self, seqs, num_tokens):
        answer = super().admit(seqs, num_tokens)
        if answer is Refusal.LATER and self._pool.free:
            self._pool.free.pop()
        return answer


class KeepsTheFirst(Paged):
    def admit(self, seqs, num_tokens):
        answer = super().admit(seqs, num_tokens)
        if answer is Refusal.LATER and len(seqs) > 1:
            super().admit(seqs[:1], 1)
        return answer


class SharesWhatIsWritten(Paged):
    def _seat(self, seqs, each, common, found):
        return super()._seat(seqs, each, each, found)

    def check(self):
        pass


class ChangesItsMind(Paged):
    asked = 0

    def admit(self, seqs, num_tokens):
        self.asked += 1
        if self.asked % 3 == 1 and self._tables.held:
            return Refusal.LATER
        return super().admit(seqs, num_tokens)


class SaysNeverWhenBusy(Paged):
    def admit(self, seqs, num_tokens):
        answer = super().admit(seqs, num_tokens)
        return Refusal.NEVER if answer is Refusal.LATER else answer


class SaysLaterForever(Paged):
    def admit(self, seqs, num_tokens):
        answer = super().admit(seqs, num_tokens)
        return Refusal.LATER if answer is Refusal.NEVER else answer


class IsTooModest(Paged):
    def longest(self, prompt_len, num_seqs):
        return super().longest(prompt_len, num_seqs) - 1


class IsTooProud(Paged):
    def longest(self, prompt_len, num_seqs):
        return super().longest(prompt_len, num_seqs) + 1


class ForgetsBlocks(Paged):
    def release(self, seq):
        super().release(seq)
        if len(self._pool.free) > 3:
            self._pool.free.pop()

    def check(self):
        pass


class HandsOutTwice(Paged):
    def extend(self, batch, num_tokens):
        before = list(self._pool.free)
        answer = super().extend(batch, num_tokens)
        if len(self._pool.free) < len(before):
            self._pool.free[-1:] = [before[-1]]
        return answer

    def check(self):
        pass


class PromisesTheMoon(Paged):
    def horizon(self, batch):
        return 1 << 60


class KeepsGrowthToItself(Paged):
    def extend(self, batch, num_tokens):
        answer = super().extend(batch, num_tokens)
        return answer._replace(growth=NO_GROWTH) if isinstance(answer, Grant) else answer


class CountsDouble(Paged):
    def extend(self, batch, num_tokens):
        answer = super().extend(batch, num_tokens)
        if isinstance(answer, Grant) and num_tokens > 1:
            self._tables.live += 1
        return answer

    def check(self):
        pass


class Gambles(Paged):
    def admit(self, seqs, num_tokens):
        random.shuffle(self._pool.free)
        return super().admit(seqs, num_tokens)


class Peeks(Paged):
    def admit(self, seqs, num_tokens):
        return super().admit(seqs, seqs[0].prompt_len + self.output_len[seqs[0].request_id])


class PeeksAhead(Paged):
    def horizon(self, batch):
        return min([super().horizon(batch), *(self.output_len[seq.request_id] for seq in batch)])


class NeverCopies(Paged):
    def fork(self, parent, child):
        ops = super().fork(parent, child)
        self._pool.sharers.clear()
        self._pool.num_saved = 0
        return ops

    def check(self):
        pass


class ForgetsTheCopy(Paged):
    def extend(self, batch, num_tokens):
        answer = super().extend(batch, num_tokens)
        return answer._replace(ops=answer.ops._replace(copies=())) if isinstance(answer, Grant) else answer


class GrantsNothing(ContiguousMax):
    def extend(self, batch, num_tokens):
        return GRANTED


class SaysNothing(Paged):
    def extend(self, batch, num_tokens):
        super().extend(batch, num_tokens)


class GrantsOneForAll(ContiguousMax):
    def admit(self, seqs, num_tokens):
        answers = super().admit(seqs, num_tokens)
        return answers if isinstance(answers, Refusal) else answers[0]


class Raises(Paged):
    def release(self, seq):
        raise IndexError("no such thing")


class DeclaresMoves(ContiguousMax):
    moves_tiers = True


class MovesNothing(ContiguousMax):
    moves_tiers = True

    def move(self, seqs, tier):
        return MemoryPolicy.move(self, seqs, tier)


class ForgetsTheRemainder(Paged):
    """A registered prefix's partial last block is not copied."""

    def admit(self, seqs, num_tokens):
        answers = super().admit(seqs, num_tokens)
        return answers if isinstance(answers, Refusal) else [Grant(grant.num_cached) for grant in answers]


class ForgetsShortChunks(Paged):
    """A chunk shorter than the registered prefix gets no more room than it asks for."""

    def admit(self, seqs, num_tokens):
        answers = super().admit(seqs, num_tokens)
        if isinstance(answers, list) and answers[0].num_cached > num_tokens:
            return [grant._replace(num_cached=num_tokens) for grant in answers]
        return answers

    def check(self):
        pass


class TrustsReturners(Paged):
    """Whoever was preempted is taken to have its prompt still."""

    def admit(self, seqs, num_tokens):
        answers = super().admit(seqs, num_tokens)
        if isinstance(answers, list) and seqs[0].num_preemptions:
            return [Grant(min(num_tokens, seqs[0].prompt_len) - 1)] * len(seqs)
        return answers


class MisstatesItsFootprint(Paged):
    def footprint(self, seq):
        return Granular(2 * self.block_size)


class TurnsTooFar(Window):
    def table(self, seq):
        whole = [slot for extent in super().table(seq) for slot in range(extent.start, sum(extent))]
        turned = whole if seq.room <= self.window else whole[1:] + whole[:1]
        return [Extent(slot, 1) for slot in turned]
