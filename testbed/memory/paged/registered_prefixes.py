"""Registered prefixes (section 4.4): a provider's instructions, pinned in the pool and shared by whoever begins so."""

from testbed.core.sequence import Sequence
from testbed.core.slots import NO_OPS, Copy, Ops


class RegisteredPrefixes(dict[int, list[int]]):
    """Pinned blocks by length in tokens: a sequence whose `prefix` is that long shares the whole ones.

    The remainder of the prefix is copied for each sequence, because it writes behind it.
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
        """The whole blocks of the prefix of `seq`, if it has a registered one."""
        return self[seq.prefix][: seq.prefix // self.block_size] if seq.prefix in self else []

    def remainder(self, seq: Sequence, blocks: list[int]) -> Ops:
        """The copy that brings the prefix's partial last block to a sequence whose own blocks these are."""
        size, last = self.block_size, seq.prefix // self.block_size
        if seq.prefix % size == 0:
            return NO_OPS
        return Ops((Copy(self[seq.prefix][last] * size, blocks[last] * size, size),))
