"""The pages of full blocks that stay findable: those of full attention always, those of windows and
states by one of these rules.
"""

from testbed.core.slots import ceil_div
from testbed.memory.groups.page_rules import PagePool
from testbed.memory.groups.page_table import PageTable


class EachSpacing:
    """Checkpoints of windows, and of states behind each `spacing` tokens."""

    def __init__(self, pages: PagePool, spacing: int) -> None:
        self._pages = pages
        self._spacing = spacing

    def keeps(self, table: PageTable, column: int, block: int) -> bool:
        is_state = not self._pages.columns[column].width
        return not is_state or (block + 1) * self._pages.block_size % self._spacing == 0


class Boundaries(EachSpacing):
    """Checkpoints that the token reads at which a resend of the prompt goes on, and the token
    behind a prefix that others share: vLLM's prefix_cache_retention_interval=0
    (SlidingWindowManager.reachable_block_mask, MambaManager.reachable_block_mask).
    """

    def __init__(self, pages: PagePool) -> None:
        super().__init__(pages, pages.block_size)
        self._tails = [self._tail(column) for column in range(len(pages.columns))]

    def _tail(self, column: int) -> int | None:
        """The blocks before a boundary that are read; None: all."""
        kind = self._pages.columns[column]
        if kind.window is None:
            return None
        return ceil_div(kind.window - 1, self._pages.block_size) if kind.width else 1

    def keeps(self, table: PageTable, column: int, block: int) -> bool:
        tail = self._tails[column]
        if tail is None:
            return True
        resend = (table.seq.prompt_len - 1) // self._pages.block_size
        return any(end - tail <= block < end for end in (resend, table.junction))
