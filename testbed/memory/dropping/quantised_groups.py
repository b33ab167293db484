"""Old tokens in fewer bits: a group of tokens is packed into fewer blocks when newer ones are
enough.
"""

from testbed.core.errors import InputError
from testbed.core.units import PositiveTokens
from testbed.memory.dropping.dropped_blocks import DroppedBlocks
from testbed.memory.policy import PoolSpec


class QuantisedGroups(DroppedBlocks):
    """Packs groups of `group` tokens into a `ratio`-th of their blocks, and keeps the last
    `residual` tokens as they are.

    So does KIVI (Liu et al., 2024) with its values: 2 bits are a ratio of 8, but for the scales of
    a group; it packs its keys all at once whenever `residual` of them have come, and so keeps
    fewer. A prompt is packed at the first decode step, later a group at a time. A slot of a packed
    block stands for `ratio` tokens: memory and bytes read are those of the packed tokens; the time
    to pack and to unpack them is not modelled (a cost model of yours may charge it).

    Args:
        pool: the memory.
        group: tokens of a group, whole blocks, of which `ratio` packed ones fill one.
        residual: last tokens that are not packed, at least a block.
        ratio: bits of a token over bits of a packed one.
        block_size: tokens of a block.
    """

    def __init__(
        self,
        pool: PoolSpec,
        group: PositiveTokens = 128,
        residual: PositiveTokens = 128,
        ratio: PositiveTokens = 4,
        block_size: PositiveTokens = 16,
    ) -> None:
        super().__init__(pool, block_size)
        if group % (ratio * block_size):
            raise InputError(
                key="group",
                value=group,
                problem=f"fills no whole blocks of {block_size} slots at a ratio of {ratio}",
                remedy=f"give a multiple of {ratio * block_size}",
            )
        if residual < block_size:
            raise InputError(
                key="residual", value=residual, problem=f"is less than a block of {block_size}"
            )
        self.group, self.residual = group, residual
        self.packed = group // (ratio * block_size)  # blocks of a packed group
        self.saved = group // block_size - self.packed  # blocks that packing a group frees

    def num_dropped(self, prompt_len: int, num_tokens: int) -> int:
        if num_tokens <= prompt_len:
            return 0
        return self.saved * (max(0, num_tokens - self.residual) // self.group)

    def next_drop(self, num_dropped: int) -> int:
        packed_groups = num_dropped // self.saved
        return self.packed * (packed_groups + 1)
