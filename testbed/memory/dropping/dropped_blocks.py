"""A pool of blocks for sequences that drop some of their blocks while they grow."""

from abc import abstractmethod

from testbed.core.errors import InputError
from testbed.core.sequence import Batch, Sequence
from testbed.core.slots import GRANTED, Answer, Answers, Extent, Grant, Refusal, Usage, ceil_div
from testbed.core.units import PositiveTokens
from testbed.memory.policy import MemoryPolicy, PoolSpec

ENDS_REFUSALS = Grant(ends_refusals=True)
NEW = -1  # in a list of blocks: one that is still to be taken


class DroppedBlocks(MemoryPolicy):
    """Sequences in blocks of block_size slots, which drop whole blocks.

    A subclass computes how many blocks a sequence has dropped at each length, and which one it
    drops next. A call is granted if the pool has the blocks for each of its tokens in turn, since
    those behind a drop need fewer. The policy does not predict, so every iteration is looked at.
    """

    def __init__(self, pool: PoolSpec, block_size: PositiveTokens = 16) -> None:
        if block_size > pool.num_slots:
            raise InputError(key="block_size", value=block_size, problem="is larger than the pool")
        self.block_size = block_size
        self.num_blocks = pool.num_slots // block_size
        self.max_len = pool.max_len
        self.free = list(range(self.num_blocks))[::-1]
        self.resident = dict[Sequence, list[int]]()  # blocks, in the order of their tokens
        self.live = 0

    @abstractmethod
    def num_dropped(self, prompt_len: int, num_tokens: int) -> int:
        """Blocks that a sequence has dropped when it has num_tokens tokens: none of 0 tokens, never
        fewer of more tokens, and never the block of the last token.

        Args:
            prompt_len: tokens of its prompt.
            num_tokens: that it has.
        """

    @abstractmethod
    def next_drop(self, num_dropped: int) -> int:
        """The place of the block that a sequence drops next, among those that it still has.

        Args:
            num_dropped: blocks that it has dropped before.
        """

    def num_stored(self, prompt_len: int, num_tokens: int) -> int:
        """Slots that a sequence of num_tokens tokens has written and keeps."""
        return num_tokens - self.num_dropped(prompt_len, num_tokens) * self.block_size

    def num_kept(self, prompt_len: int, num_tokens: int) -> int:
        """Blocks that a sequence of num_tokens tokens has."""
        return ceil_div(num_tokens, self.block_size) - self.num_dropped(prompt_len, num_tokens)

    def admit(self, seqs: list[Sequence], num_tokens: int) -> Answers:
        prompt_len = seqs[0].prompt_len
        starts = range(1, num_tokens + 1, self.block_size)  # a token at another place takes none
        most = max(self.num_kept(prompt_len, start) for start in starts) * len(seqs)
        if most > len(self.free):
            return Refusal.NEVER if most > self.num_blocks else Refusal.LATER
        self.resident |= {seq: [] for seq in seqs}
        self._grow([(seq, 0) for seq in seqs], num_tokens)
        return [GRANTED] * len(seqs)

    def extend(self, batch: Batch, num_tokens: int = 1) -> Answer:
        num_free, held = len(self.free), sum(len(self.resident[seq]) for seq in batch)
        for more in range(1, num_tokens + 1):
            kept = sum(self.num_kept(seq.prompt_len, seq.num_slots + more) for seq in batch)
            if kept - held > num_free:
                return Refusal.LATER
        self._grow([(seq, seq.num_slots) for seq in batch], num_tokens)
        return ENDS_REFUSALS if len(self.free) > num_free else GRANTED

    def _grow(self, lengths: list[tuple[Sequence, int]], num_tokens: int) -> None:
        """Each of these sequences of such lengths has num_tokens more: all drop their blocks before
        one takes some.
        """
        for seq, length in lengths:
            self._drop(seq, length, length + num_tokens)
        for seq, _ in lengths:
            blocks = self.resident[seq]
            for place in range(blocks.index(NEW) if NEW in blocks else len(blocks), len(blocks)):
                blocks[place] = self.free.pop()

    def _drop(self, seq: Sequence, before: int, after: int) -> None:
        """The sequence has places for the blocks that `after` tokens need, and drops blocks."""
        blocks, size, prompt_len = self.resident[seq], self.block_size, seq.prompt_len
        blocks += [NEW] * (ceil_div(after, size) - ceil_div(before, size))
        dropped = self.num_dropped(prompt_len, before)
        for number in range(dropped, self.num_dropped(prompt_len, after)):
            block = blocks.pop(self.next_drop(number))
            if block != NEW:
                self.free.append(block)
        self.live += self.num_stored(prompt_len, after) - self.num_stored(prompt_len, before)

    def release(self, seq: Sequence) -> None:
        self.free += self.resident.pop(seq)
        self.live -= self.num_stored(seq.prompt_len, seq.num_slots)

    def table(self, seq: Sequence) -> list[Extent]:
        size = self.block_size
        return [Extent(block * size, size) for block in self.resident[seq]]

    def usage(self) -> Usage:
        total, free = self.num_blocks * self.block_size, len(self.free) * self.block_size
        held = total - free
        return Usage(total, self.live, held, held, cached=0, free=free, largest_free=free)

    def max_seq_len(self, prompt_len: int, num_seqs: int) -> int:
        most = self.num_blocks // num_seqs
        if ceil_div(self.max_len, self.block_size) <= most:
            return self.max_len
        for start in range(1, self.max_len + 1, self.block_size):
            if self.num_kept(prompt_len, start) > most:
                return start - 1
        return self.max_len

    def check(self) -> None:
        super().check()
        for seq, blocks in self.resident.items():
            kept = self.num_kept(seq.prompt_len, seq.num_slots)
            assert len(blocks) == kept, f"{seq} has {len(blocks)} blocks, not {kept}"
        lists = (*self.resident.values(), self.free)
        assert sorted(block for blocks in lists for block in blocks) == list(
            range(self.num_blocks)
        ), "blocks were lost"
