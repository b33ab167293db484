"""The pages of states of which a sequence has those at the ends of its chunks alone (vLLM's
mamba_cache_mode=align).
"""

from testbed.core.sequence import Sequence
from testbed.memory.groups.page_rules import PagePool
from testbed.memory.groups.page_table import Hit
from testbed.memory.groups.state_chunks import Prefill, StateChunks


class AlignedStates:
    """States of each column that sequences need and hold.

    chunks: where chunks end, and which export a state within them.
    """

    def __init__(self, pages: PagePool, chunks: StateChunks) -> None:
        self.chunks = chunks
        self._columns = [i for i, column in enumerate(pages.columns) if not column.width]
        self._prefill_ends = dict[int, int]()  # by sequence

    def cut(self, seq: Sequence, start: int, new: int, prefill: Prefill, most: int) -> int:
        """The tokens of a chunk of at most `new` tokens; see StateChunks.cut."""
        self._prefill_ends[seq.seq_id] = prefill.end
        return self.chunks.cut(start, new, prefill, most)

    def forget(self, seq: Sequence) -> None:
        """The sequence has no pages any more."""
        self._prefill_ends.pop(seq.seq_id, None)

    def num_pages(self, seq: Sequence | None, start: int, end: int) -> int:
        """Pages of a column that the tokens from `start` to `end` take; without a sequence: the
        most that any holds.
        """
        if seq is None:
            return 2 + self.chunks.exports_any
        prefill_end = self._prefill_ends.get(seq.seq_id, max(seq.prompt_len, end - 1))
        return self.chunks.num_pages(start, end, prefill_end)

    def count(self, needed: list[int], num_pages: int) -> None:
        """Set what the columns of states need."""
        for column in self._columns:
            needed[column] = num_pages

    def held(self, hit: Hit) -> dict[int, list[int]]:
        """The blocks of the states that a hit has, by column."""
        last = hit.num_tokens // self.chunks.block_size - 1
        return {column: [last] * len(hit.pages[column]) for column in self._columns}
