"""Registered prefixes (section 4.4): a provider's instructions, pinned in the pool and shared by whoever begins so."""

from collections.abc import Iterator

from testbed.core.sequence import Sequence
from testbed.core.slots import Copy, Grant, Ops
from testbed.memory.paged.block_pool import BlockPool
from testbed.memory.paged.block_table import BlockTable


class RegisteredPrefixes:
    """Pinned tables by length in tokens: a sequence whose `prefix` is that long shares the whole blocks.

    The remainder of the prefix is copied for each sequence, because it writes behind it.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.num_blocks = 0
        self._tables: dict[int, BlockTable] = {}

    def __contains__(self, num_tokens: int) -> bool:
        return num_tokens in self._tables

    def __iter__(self) -> Iterator[BlockTable]:
        return iter(self._tables.values())

    def pin(self, num_tokens: int, blocks: list[int]) -> None:
        """These blocks store a prefix of num_tokens tokens from now on."""
        self._tables[num_tokens] = BlockTable(num_tokens, blocks)
        self.num_blocks += len(blocks)

    def shared(self, seq: Sequence, num_tokens: int) -> list[int]:
        """The whole blocks of the prefix of `seq` among its first num_tokens tokens."""
        prefix = self._tables.get(seq.prefix) if self._tables else None
        return prefix.blocks[: min(seq.prefix, num_tokens) // self.block_size] if prefix else []

    def hit(self, seq: Sequence, table: BlockTable, pool: BlockPool) -> Grant:
        """A new table, which begins with the shared blocks, holds them too; says what else of the prefix to copy."""
        prefix, shared = self._tables[seq.prefix], self.shared(seq, table.num_tokens)
        pool.share(shared)
        cached, stored = min(seq.prefix, table.num_tokens), len(shared) * self.block_size
        if cached == stored:
            return Grant(cached)
        source, target = (blocks[len(shared)] * self.block_size for blocks in (prefix.blocks, table.blocks))
        return Grant(cached, Ops((Copy(source, target, cached - stored),)))
