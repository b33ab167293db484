"""Registered prefixes (section 4.4): a provider's instructions, pinned in the pool and shared by whoever begins so."""

from testbed.core.sequence import Sequence
from testbed.core.slots import NO_OPS, Copy, Ops


class RegisteredPrefixes(dict[int, list[int]]):
    """Pinned blocks by length in tokens: a sequence whose `prefix` is that long shares the whole ones.

    The remainder of the prefix is copied for each sequence, because it writes behind it. So is the block with the last
    prompt token, which is always computed again.
    """

    __slots__ = ("block_size", "num_blocks")

    def __init__(self, block_size: int) -> None:
        super().__init__()
        self.block_size = block_size
        self.num_blocks = 0

    def pin(self, num_tokens: int, blocks: list[int]) -> None:
        """These blocks store a prefix of num_tokens tokens from now on."""
        self[num_tokens] = blocks
        self.num_blocks += len(blocks)

    def whole(self, seq: Sequence) -> list[int]:
        """The whole blocks of the registered prefix of `seq` that it never writes to."""
        return self[seq.prefix][: self._num_whole(seq)]

    def remainder(self, seq: Sequence, blocks: list[int]) -> Ops:
        """The copy that brings the rest of the prefix to a sequence whose own blocks these are."""
        size, last = self.block_size, self._num_whole(seq)
        if seq.prefix == last * size:
            return NO_OPS
        return Ops((Copy(self[seq.prefix][last] * size, blocks[last] * size, size),))

    def _num_whole(self, seq: Sequence) -> int:
        return min(seq.prefix, seq.prompt_len - 1) // self.block_size
