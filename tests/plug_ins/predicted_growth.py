"""Paged memory whose admissions leave free what the running sequences are predicted to need."""

from testbed.core.slots import ceil_div
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec


class PredictedGrowth(Paged):
    """Every sequence is predicted to generate output_len tokens, and at least a block more.

    An admission leaves free `share` of the blocks that are still to come. At most 1: a block that
    a sequence takes then leaves no more free to others than before, and a refusal stays.
    """

    def __init__(
        self, pool: PoolSpec, block_size: int = 16, output_len: int = 250, share: float = 0.5
    ) -> None:
        super().__init__(pool, block_size, watermark=0)
        self.output_len = output_len
        self.share = share

    def reserve(self, tables):
        return int(self.share * sum(map(self.missing_blocks, tables)))

    def missing_blocks(self, table):
        """Blocks that a sequence is predicted to take yet."""
        predicted = ceil_div(table.seq.prompt_len + self.output_len, self.block_size)
        return max(predicted - len(table.blocks), 1)
