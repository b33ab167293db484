"""The host tier (section 4.5): whole groups move there and back, every shared block once."""

from dataclasses import dataclass

from testbed.core.slots import Copy
from testbed.memory.block_pool import BlockPool
from testbed.memory.block_table import BlockTable


@dataclass(slots=True)
class HostTable:
    """A sequence on the host. Its first `kept` blocks are a registered prefix and never leave the device."""

    num_tokens: int
    kept: list[int]
    blocks: list[int]


def distinct(tables: list[list[int]]) -> list[int]:
    """Every block of these tables once, in order of first appearance."""
    return list(dict.fromkeys(block for table in tables for block in table))


def stored_tokens(tables: list[BlockTable], block_size: int) -> int:
    """Slots that store a token in the blocks of these tables, shared ones once."""
    filled = dict[int, int]()
    for table in tables:
        for i, block in enumerate(table.blocks):
            filled[block] = max(filled.get(block, 0), min(block_size, table.num_tokens - i * block_size))
    return sum(filled.values())


def pair(tables: list[list[int]], source: list[int], target: list[int]) -> list[list[int]]:
    """The tables with every source block replaced by its target block."""
    target_of = dict(zip(source, target, strict=True))
    return [[target_of[block] for block in table] for table in tables]


def transfers(source: list[int], target: list[int], block_size: int) -> tuple[Copy, ...]:
    """One transfer a block between the tiers."""
    pairs = zip(source, target, strict=True)
    return tuple(Copy(src * block_size, dst * block_size, block_size) for src, dst in pairs)


def share_repeated(tables: list[list[int]], pool: BlockPool) -> None:
    """Count the second and later holders of every freshly taken block."""
    seen = set[int]()
    for table in tables:
        pool.share(block for block in table if block in seen)
        seen.update(table)
