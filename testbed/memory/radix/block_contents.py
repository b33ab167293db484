"""Contents of blocks, as numbers of 64 bits in arrays: runs of them are compared and cut at once.

`plain_contents` is the plain statement. Two blocks have equal numbers if and only if it says that
they store the same.
"""

from array import array
from collections.abc import Sequence as Row
from itertools import count, islice

import numpy as np

from testbed.core.sequence import Sequence
from testbed.memory.prefix_cache.hash_chain import Content, block_contents, generated_contents

# Three kinds of numbers: ids of the trace as they are, numbers given to other contents in the order
# in which they come, and numbers of blocks that one sequence alone has.
LARGEST_ID = 1 << 61
GIVEN = 1 << 61
OWN = 1 << 62
OWN_BITS = 28  # blocks of a sequence


class ContentNames:
    """The numbers of contents, for blocks of block_size tokens."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._next = count(GIVEN)
        self._given: dict[Content, int] = {}

    def of(self, seq: Sequence, num_blocks: int) -> "array[int]":
        """Numbers of the first num_blocks blocks: of the prompt, then of what is generated."""
        numbers = self._of_prompt(seq, min(seq.prompt_len // self.block_size, num_blocks))
        parts, answer_id = seq.tokens_per_id // self.block_size, seq.answer_id
        if answer_id is None:
            first = OWN + (seq.seq_id << OWN_BITS)
        elif parts and 0 <= answer_id < LARGEST_ID // parts - num_blocks:
            first = answer_id * parts
        else:
            contents = plain_contents(seq, num_blocks, self.block_size)
            numbers.extend(map(self._of_content, contents[len(numbers) :]))
            return numbers
        numbers.extend(range(first + len(numbers), first + num_blocks))
        return numbers

    def _of_prompt(self, seq: Sequence, num_blocks: int) -> "array[int]":
        """Numbers of whole blocks of the prompt; none without ids."""
        ids, parts = seq.prompt_ids, seq.tokens_per_id // self.block_size
        if ids is None:
            return array("q")
        if not parts or seq.tokens_per_id % self.block_size:
            return self._with_large(seq, num_blocks)
        try:
            some = array("q", ids[: -(-num_blocks // parts)])
        except OverflowError:
            return self._with_large(seq, num_blocks)
        table = np.frombuffer(some, np.int64)
        if num_blocks and max(table.max(), -table.min()) >= LARGEST_ID // parts:
            return self._with_large(seq, num_blocks)
        if parts == 1:
            return some
        numbers = (table[:, np.newaxis] * parts + np.arange(parts)).ravel()
        return array("q", numbers[:num_blocks].tobytes())

    def _with_large(self, seq: Sequence, num_blocks: int) -> "array[int]":
        """Numbers of the contents, if some are not their own numbers."""
        return array("q", map(self._of_content, self._plain(seq, num_blocks)))

    def _plain(self, seq: Sequence, num_blocks: int) -> Row[Content]:
        assert seq.prompt_ids is not None, "it has ids"
        size = self.block_size
        return block_contents(seq.prompt_ids, seq.tokens_per_id, num_blocks * size, size)

    def _of_content(self, content: Content) -> int:
        """A content that is no id, or a large one, gets the next number."""
        if isinstance(content, int) and -LARGEST_ID < content < LARGEST_ID:
            return content
        known = self._given.get(content)
        if known is None:
            known = self._given[content] = next(self._next)
        return known


def plain_contents(seq: Sequence, num_blocks: int, block_size: int) -> tuple[Content, ...]:
    """The contents themselves."""
    num_full = min(seq.prompt_len // block_size, num_blocks)
    known: tuple[Content, ...] = ()
    if seq.prompt_ids is not None:
        num_tokens = num_full * block_size
        known = tuple(block_contents(seq.prompt_ids, seq.tokens_per_id, num_tokens, block_size))
    behind = generated_contents(seq, block_size, len(known))
    return (*known, *islice(behind, num_blocks - len(known)))
