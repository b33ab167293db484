"""Four policies with one fault each; the debug mode must catch them."""

from testbed.core.slots import HOST, Copy, Grant, Move, Ops
from testbed.memory.paged.paged import Paged


class ForgottenCopy(Paged):
    """Gives a writer a block of its own and orders no copy into it."""

    def extend(self, batch, num_tokens):
        answer = super().extend(batch, num_tokens)
        return answer._replace(ops=Ops()) if isinstance(answer, Grant) else answer


class DoubleOwner(Paged):
    """Gives the first block of the sequence before to the next one too."""

    def table(self, seq):
        table = super().table(seq)
        others = [i for i in self._tables.held if i < seq.seq_id]
        return [super().table(self._tables.held[others[0]].seq)[0], *table[1:]] if others else table


class WritesShared(Paged):
    """Lets several sequences write in place to a block that they share."""

    def extend(self, batch, num_tokens):
        index = batch.index(self, self._index)
        index.tails.clear()
        return super().extend(batch, num_tokens)


class WrongSwapIn(Paged):
    """Brings the first two blocks back in each other's place."""

    def move(self, seqs, tier):
        answer = super().move(seqs, tier)
        if tier == HOST or not isinstance(answer, Grant):
            return answer
        (move,) = answer.ops.moves
        first, second, *rest = move.copies
        swapped = Copy(first.src, second.dst, first.length), Copy(second.src, first.dst, first.length)
        return Grant(0, Ops(moves=(Move(move.source, move.target, (*swapped, *rest)),)))
