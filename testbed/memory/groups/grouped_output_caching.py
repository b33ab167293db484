"""Prefix caching over several KV groups as vLLM V1 has it: pages of generated tokens stay too."""

from collections.abc import Iterable
from itertools import chain

from testbed.core.errors import InputError
from testbed.core.sequence import Sequence
from testbed.core.slots import Keep
from testbed.core.units import Count, NonNegative, PositiveTokens, Share
from testbed.memory.groups.grouped import WINDOW_SHARE
from testbed.memory.groups.grouped_caching import GroupedCaching
from testbed.memory.groups.page_table import NONE, PageTable
from testbed.memory.policy import PoolSpec
from testbed.memory.prefix_cache.hash_chain import Content
from testbed.memory.prefix_cache.output_caching import output_contents
from testbed.memory.prefix_cache.prefix_index import Node
from testbed.memory.served import Batching
from testbed.vllm.releases import DEFAULT, Release


class GroupedOutputCaching(GroupedCaching):
    """GroupedCaching whose pages of generated tokens, and of prompts without ids, are findable by
    their own sequence.

    A preempted sequence finds those that were not evicted meanwhile. A finished one's are never
    found, but wait to be evicted like all others. They are published when a window or the sequence
    gives them back, not when they fill up, with the same result: until then no request could find
    them.

    A page without known content that is given back waits for its turn behind those that are idle,
    or is taken before them where the release takes uncached_first.

    Raises:
        InputError: another page rule than vLLM's.
    """

    def __init__(
        self,
        pool: PoolSpec,
        block_size: PositiveTokens = 16,
        page_rule: str = "one_page_size",
        watermark: Share = 0.0,
        window_share: NonNegative = WINDOW_SHARE,
        num_dropped_blocks: Count = 0,
        state_spacing: PositiveTokens | None = None,
        release: Release = DEFAULT,
        batching: Batching | None = None,
    ) -> None:
        if page_rule != "one_page_size":
            raise InputError(
                f"page_rule={page_rule}: this is the manager of vLLM, whose pages have one size "
                "(set page_rule=one_page_size, or choose policy=grouped_caching)"
            )
        super().__init__(
            pool,
            block_size,
            page_rule,
            watermark,
            window_share,
            num_dropped_blocks,
            state_spacing,
            release,
            batching,
        )
        self._uncached_first = release.uncached_first
        self._with_output = set[int]()  # sequences whose prompt was computed; never iterated over

    def _drop_unread(self, table: PageTable) -> None:
        self._publish_blocks(table.seq, table.blocks_left())
        super()._drop_unread(table)

    def _give_back(self, seq: Sequence, keep: Keep) -> None:
        if seq.num_stored >= seq.prompt_len:
            self._with_output.add(seq.seq_id)
        if keep is not Keep.NOTHING:
            self._publish_stored(seq)
        super()._give_back(seq, keep)

    def _set_page(self, node: Node, column: int, page: int, seq: Sequence) -> None:
        """A page keeps its content though another one has the same, as in vLLM."""
        if node.memo[column] == NONE:
            super()._set_page(node, column, page, seq)
        elif page not in self._index.by_page:
            self._index.add_copy(node, column, page)

    def _put_uncached(self, column: int, page: int) -> None:
        if self._uncached_first:
            super()._put_uncached(column, page)
        else:
            self.pages.put_last(column, page)

    def _publish_stored(self, seq: Sequence) -> None:
        self._publish_blocks(seq, seq.num_stored // self.tokens_per_page)

    def _contents(self, seq: Sequence) -> Iterable[Content]:
        """Of all its blocks, without end."""
        of_prompt = list(super()._contents(seq))
        return chain(of_prompt, output_contents(seq, len(of_prompt)))

    def _num_readable(self, seq: Sequence, num_tokens: int) -> int:
        """All that a sequence with generated tokens has stored: the last one is not among it."""
        if seq.seq_id in self._with_output:
            return self._max_len
        return super()._num_readable(seq, num_tokens)
