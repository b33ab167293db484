"""A budget of tokens that is kept of a prompt once it is computed."""

from testbed.core.errors import InputError
from testbed.core.slots import ceil_div
from testbed.core.units import PositiveTokens
from testbed.memory.dropping.dropped_blocks import DroppedBlocks
from testbed.memory.policy import PoolSpec


class PromptBudget(DroppedBlocks):
    """Keeps `budget` tokens of a prompt from the first decode step on, in whole blocks.

    A prompt is computed with all of its tokens. Then it keeps its first block and the blocks
    of its end; SnapKV (Li et al., 2024) keeps those with the most attention, which a simulation
    does not know: equally many. Generated tokens are kept, as SnapKV does, or after every
    `interval` of them as many are dropped, as H2O does (Zhang et al., 2023: interval 1, here
    a block). The copies that close the gaps of tokens dropped one by one, and the choice of the
    tokens, cost no time here. A sequence that comes back after a preemption needs what it needed
    before.

    Args:
        pool: the memory.
        budget: tokens of a prompt that stay, rounded up to whole blocks.
        interval: generated tokens after which as many are dropped, rounded up to whole blocks;
            None: never.
        block_size: tokens of a block.
    """

    def __init__(
        self,
        pool: PoolSpec,
        budget: PositiveTokens = 1024,
        interval: PositiveTokens | None = None,
        block_size: PositiveTokens = 16,
    ) -> None:
        super().__init__(pool, block_size)
        self.budget = ceil_div(budget, block_size)  # blocks, as the interval is
        self.interval = None if interval is None else ceil_div(interval, block_size)
        if self.budget < 2:
            raise InputError(
                key="budget",
                value=budget,
                problem="is one block, and the first and the last block of a prompt stay",
                remedy=f"give more than {block_size} tokens",
            )

    def num_dropped(self, prompt_len: int, num_tokens: int) -> int:
        if num_tokens <= prompt_len:
            return 0
        of_prompt = max(0, ceil_div(prompt_len, self.block_size) - self.budget)
        if self.interval is None:
            return of_prompt
        beyond = ceil_div(num_tokens, self.block_size) - of_prompt - self.budget
        return of_prompt + self.interval * max(0, ceil_div(beyond, self.interval) - 1)

    def next_drop(self, num_dropped: int) -> int:
        return 1
