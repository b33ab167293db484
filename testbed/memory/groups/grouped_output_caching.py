"""Prefix caching over several KV groups as vLLM V1 has it: pages of generated tokens stay too."""

from typing import Any

from testbed.core.errors import InputError
from testbed.core.sequence import Batch, Sequence
from testbed.core.slots import CacheHit
from testbed.core.units import PositiveTokens, Share
from testbed.memory.groups.aligned_states import AlignedStates
from testbed.memory.groups.cached_contents import OutputContents
from testbed.memory.groups.checkpoints import Boundaries
from testbed.memory.groups.grouped_caching import GroupedCaching
from testbed.memory.groups.page_rule import ONE_PAGE_SIZE
from testbed.memory.groups.state_chunks import Prefill, StateChunks
from testbed.memory.policy import PoolSpec
from testbed.memory.served import StateCaching
from testbed.vllm.releases import DEFAULT, Release


class GroupedOutputCaching(GroupedCaching):
    """GroupedCaching whose pages of generated tokens, and of prompts without ids, are findable by
    their own sequence (see OutputContents).

    states: how prefixes of states are cached by a scheduler that asks where a chunk ends; None: a
    state is kept behind each block. caching: the options of GroupedCaching.

    Raises:
        InputError: another page rule than vLLM's.
    """

    def __init__(
        self,
        pool: PoolSpec,
        block_size: PositiveTokens = 16,
        *,
        page_rule: str = ONE_PAGE_SIZE,
        watermark: Share = 0.0,
        release: Release = DEFAULT,
        states: StateCaching | None = None,
        **caching: Any,
    ) -> None:
        if page_rule != ONE_PAGE_SIZE:
            raise InputError(
                key="page_rule",
                value=page_rule,
                problem="this is the manager of vLLM, whose pages have one size",
                remedy="set policy.page_rule=one_page_size, or choose policy=grouped_caching",
            )
        super().__init__(
            pool,
            block_size,
            watermark=watermark,
            release=release,
            contents=OutputContents(release),
            **caching,
        )
        if release.thins_checkpoints:
            self.cache.checkpoints = Boundaries(self.pages)
        if states is not None:
            chunks = StateChunks(release, block_size, states.alignment)
            self.states = AlignedStates(self.pages, chunks)

    def cut_chunk(
        self, seq: Sequence, start: int, new: int, num_tokens: int, most: int, hit: CacheHit
    ) -> int:
        if self.states is None:
            return new
        table = self._tables.get(seq.seq_id)
        if table is not None:
            junction = table.junction
        else:
            junction = self.cache.hits(seq, num_tokens, hit)[0].junction
        prefill = Prefill(seq.prompt_len, num_tokens, junction * self.tokens_per_page)
        return self.states.cut(seq, start, new, prefill, most)

    def has_chunks(self) -> bool:
        return self.states is not None

    def begin_plan(self) -> bool:
        if self.states is not None:
            for table in self._tables.values():
                table.begin_plan()
        return self.cache.begin_plan()

    def guaranteed_steps(self, batch: Batch) -> int:
        return 0 if self.cache.has_unready() else super().guaranteed_steps(batch)
