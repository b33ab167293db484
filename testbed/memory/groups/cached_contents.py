"""Contents of the pages of a sequence, by which they are found, and the pages of equal content that
stay.
"""

from collections.abc import Iterable
from itertools import chain

from testbed.core.sequence import Sequence
from testbed.memory.groups.page_rules import PagePool
from testbed.memory.prefix_cache.hash_chain import Content, block_contents, generated_contents
from testbed.vllm.releases import Release


class PromptContents:
    """Full blocks of prompts with ids are findable. Of equal pages one stays."""

    keeps_copies = False
    waits_for_states = False  # that are computed in the same iteration; else a shorter hit is taken

    def of(self, seq: Sequence, block_size: int) -> Iterable[Content]:
        """The contents of the leading blocks that are findable."""
        ids = seq.prompt_ids
        if ids is None:
            return []
        return list(block_contents(ids, seq.tokens_per_id, seq.prompt_len, block_size))

    def num_readable(self, seq: Sequence, num_tokens: int, block_size: int) -> int:
        """Blocks that an admission for num_tokens tokens may find: the last prompt token is
        computed again unless a generated one follows.
        """
        has_output = num_tokens > seq.prompt_len
        return (seq.prompt_len - (not has_output)) // block_size

    def num_returned(self, seq: Sequence, num_blocks: int) -> int:
        """Count the blocks, of the first num_blocks, that become findable when their pages are
        given back.
        """
        return 0

    def released(self, seq: Sequence) -> None:
        """The sequence is about to give back all its pages."""

    def put_uncached(self, pages: PagePool, column: int, page: int) -> None:
        """Give back a page that no sequence holds and that has no findable content."""
        pages.put(column, [page])


class OutputContents(PromptContents):
    """All blocks are findable: those of prompts without ids, and of generated tokens that no trace
    names, by their own sequence. It is what vLLM V1's manager keeps.

    A preempted sequence finds what was not evicted meanwhile; a finished one's generated blocks
    wait to be evicted like all others. They are published when a window or the sequence gives them
    back, not when they fill up, with the same result: until then no request could find them. Equal
    pages all stay. A page without known content waits for its turn behind those that are idle, or
    is taken before them if the release takes uncached_first.
    """

    keeps_copies = True
    waits_for_states = True

    def __init__(self, release: Release) -> None:
        self._release = release
        self._stored = dict[int, int]()  # most tokens of a sequence that was computed to its output

    def of(self, seq: Sequence, block_size: int) -> Iterable[Content]:
        """The contents of all its blocks, without end."""
        of_prompt = list(super().of(seq, block_size))
        return chain(of_prompt, generated_contents(seq, block_size, len(of_prompt)))

    def num_readable(self, seq: Sequence, num_tokens: int, block_size: int) -> int:
        """All that a sequence with generated tokens has stored: the last one is not among it. Later
        blocks of an answer that a trace names may be stored by a prompt that contains it.
        """
        num_stored = self._stored.get(seq.seq_id)
        if num_stored is None:
            return super().num_readable(seq, num_tokens, block_size)
        return num_stored // block_size

    def num_returned(self, seq: Sequence, num_blocks: int) -> int:
        return num_blocks

    def released(self, seq: Sequence) -> None:
        if seq.num_stored >= seq.prompt_len:
            self._stored[seq.seq_id] = max(seq.num_stored, self._stored.get(seq.seq_id, 0))

    def put_uncached(self, pages: PagePool, column: int, page: int) -> None:
        if self._release.uncached_first:
            super().put_uncached(pages, column, page)
        else:
            pages.put_last(column, page)
