"""Paged memory that breaks a clause only once something was swapped out, or back in."""

from testbed.core.slots import HOST, Grant
from testbed.memory.paged.paged import Paged


class DropsWriteBacks(Paged):
    """What was on the host once is taken for stored there for good."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self._written = set()

    def move(self, seqs, tier):
        answer = super().move(seqs, tier)
        if tier == HOST and isinstance(answer, Grant):
            again = seqs[0].seq_id in self._written
            self._written.add(seqs[0].seq_id)
            return Grant() if again else answer
        return answer


class DropsTheWayBack(Paged):
    def move(self, seqs, tier):
        answer = super().move(seqs, tier)
        return Grant() if tier != HOST and isinstance(answer, Grant) else answer


class LosesBlocksAfterSwapIn(Paged):
    def move(self, seqs, tier):
        answer = super().move(seqs, tier)
        if tier != HOST and isinstance(answer, Grant) and self._pool.free:
            self._pool.free.pop()
        return answer

    def check(self):
        pass


class KeepsTheHostFull(Paged):
    def move(self, seqs, tier):
        before = list(self._host._pool.free)
        answer = super().move(seqs, tier)
        if tier != HOST and isinstance(answer, Grant):
            self._host._pool.free = before
        return answer

    def check(self):
        pass


class OverfillsTheHost(Paged):
    """The last block of the host is given to two."""

    def move(self, seqs, tier):
        answer = super().move(seqs, tier)
        free = self._host._pool.free
        if tier == HOST and isinstance(answer, Grant) and not free:
            free.append(answer.ops.moves[0].copies[-1].dst // self.block_size)
        return answer

    def check(self):
        pass


class SwapsOneByOne(Paged):
    """A shared block gets a place on the host for each that shares it, but is written to the first one only."""

    def move(self, seqs, tier):
        answer = super().move(seqs, tier)
        if isinstance(answer, Grant) and len(seqs) > 1 and tier == HOST:
            (move,) = answer.ops.moves
            return Grant(0, answer.ops._replace(moves=(move._replace(copies=move.copies[:-1]),)))
        return answer
