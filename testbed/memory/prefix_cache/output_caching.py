"""Prefix caching as vLLM V1 has it: blocks with generated tokens stay in the cache too."""

from collections.abc import Iterator, Sequence
from itertools import chain, islice

from testbed.core.sequence import Sequence as Seq
from testbed.core.slots import Keep, Ops, ceil_div
from testbed.core.units import PositiveTokens, Share
from testbed.memory.policy import PoolSpec
from testbed.memory.prefix_cache.caching_pool import CachingPool, LastUsePool
from testbed.memory.prefix_cache.eviction.lru import Lru
from testbed.memory.prefix_cache.eviction.order import EvictionOrder
from testbed.memory.prefix_cache.hash_chain import (
    Content,
    block_contents,
    generated_contents,
    with_next_ids,
)
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching, PromptHit
from testbed.memory.prefix_cache.prefix_index import Key, Node
from testbed.memory.served import Drafts
from testbed.vllm.releases import DEFAULT, Release


class OutputCaching(PrefixCaching):
    """Prefix caching whose blocks with generated tokens are findable: by their own sequence when it
    returns after a preemption, and by later prompts that contain the answer, if the trace names
    it (answer_id). So are prompts without ids, by their own sequence.

    Blocks with generated tokens are published when the slots are released, not when they fill up,
    with the same result if a prompt comes after the answer that it contains; nor is an order called
    for a block that is held.

    With the order `lru` blocks leave as in the release, see LastUsePool. With another one, free
    blocks are taken before cached ones are evicted, and the cache keeps one copy of equal contents.

    Sequences of a group share their prompt alone: beams change whose tokens they go on with, and
    samples come back together. On the host nothing is findable, as before.

    release: vLLM's. drafts: what a drafter reads; one of hidden states computes the last block of a
    hit again, or knows each block by the token behind it too, as the release has it.
    """

    def __init__(
        self,
        pool: PoolSpec,
        block_size: PositiveTokens = 16,
        watermark: Share = 0.0,
        eviction: EvictionOrder | None = None,
        release: Release = DEFAULT,
        drafts: Drafts = Drafts.NONE,
    ) -> None:
        reads_hidden_states = drafts is Drafts.OF_HIDDEN_STATES
        self._num_behind = release.tokens_behind(reads_hidden_states)
        self._num_dropped = release.blocks_again(reads_hidden_states)
        # An admission may ask for more slots than the group has tokens.
        self._asks_ahead = drafts is not Drafts.NONE and release.admits_with_drafts
        self._with_output = set[int]()  # sequences whose prompt was computed; never iterated over
        self._num_named: dict[int, int] = {}  # blocks of named answers that were preempted
        self._release = release
        super().__init__(pool, block_size=block_size, watermark=watermark, eviction=eviction)

    def fork(self, parent: Seq, child: Seq) -> Ops:
        for seq in (parent, child):
            if seq.seq_id in self._prompts:
                self._prompts[seq.seq_id].alone = False
        return super().fork(parent, child)

    def lookup(self, seq: Seq) -> PromptHit:
        hit = super().lookup(seq)
        hit.num_dropped = self._num_dropped
        if seq.seq_id in self._with_output:
            hit.has_output = True
        elif self._asks_ahead:
            hit.has_output = False
        return hit

    def reserve_in_turn(self, wanted: Sequence[tuple[Seq, int]]) -> int:
        """Sequences before the first that lacks blocks evict now what they need, before the
        blocks without content that the next preempted sequence leaves.
        """
        num_blocks = 0
        for served, (seq, more) in enumerate(wanted):
            own = ceil_div(seq.num_slots, self.block_size)
            needed = num_blocks + ceil_div(seq.num_slots + more, self.block_size) - own
            if needed > self._cache.available():
                self._ensure_free(num_blocks)
                return served
            num_blocks = needed
        self._ensure_free(num_blocks)
        return len(wanted)

    def _give_back(self, seq: Seq, keep: Keep) -> None:
        num_stored = seq.num_stored
        if (self._num_dropped or self._asks_ahead) and num_stored >= seq.prompt_len:
            self._with_output.add(seq.seq_id)
        prompt = self._prompts.get(seq.seq_id)
        is_stored = prompt is not None and prompt.alone and seq.seq_id in self._tables.held
        if prompt is not None and is_stored and keep is not Keep.NOTHING:
            of_prompt, full = prompt.contents, num_stored // self.block_size
            if seq.answer_id is not None:
                self._num_named[seq.seq_id] = full
            if full > len(of_prompt):
                prompt.contents = self._first_contents(seq, of_prompt, full)
            self.publish(seq, num_stored)
        super()._give_back(seq, keep)

    def _make_cache(self, num_blocks: int, order: EvictionOrder) -> CachingPool:
        if type(order) is Lru:
            return LastUsePool(num_blocks, self._release)
        return super()._make_cache(num_blocks, order)

    def _contents(self, seq: Seq) -> Sequence[Content] | None:
        if seq.registered_prefix in self._tables.prefixes:
            return super()._contents(seq)
        num_tokens = seq.prompt_len - self._num_behind
        if seq.prompt_ids is None:
            return list(islice(self._generated(seq, 0), num_tokens // self.block_size))
        ids, tokens_per_id, size = seq.prompt_ids, seq.tokens_per_id, self.block_size
        contents = block_contents(ids, tokens_per_id, num_tokens, size)
        return with_next_ids(contents, ids, tokens_per_id, size) if self._num_behind else contents

    def _match(self, seq: Seq, contents: Sequence[Content]) -> list[Node]:
        """Generated blocks too: see PromptHit.on_device for what is found of the prompt alone."""
        behind = self._generated(seq, len(contents))
        if seq.answer_id is not None:  # others may have published more than it has generated
            behind = islice(behind, max(self._num_named.get(seq.seq_id, 0) - len(contents), 0))
        return self._cache.index.match(chain(contents, behind))

    def _first_contents(
        self, seq: Seq, of_prompt: Sequence[Content], num_blocks: int
    ) -> list[Content]:
        """The contents of a sequence's first blocks, behind its prompt those that it generates."""
        rest = islice(self._generated(seq, len(of_prompt)), max(num_blocks - len(of_prompt), 0))
        return [*of_prompt, *rest][:num_blocks]

    def _first_keys(self, seq: Seq, of_prompt: Sequence[Content], num_blocks: int) -> list[Key]:
        """The keys of a sequence's first blocks, by which a cache below the device knows them."""
        every = self._first_contents(seq, of_prompt, num_blocks)
        return list(zip(self._cache.index.chain(every), every, strict=True))

    def _generated(self, seq: Seq, first: int) -> Iterator[Content]:
        return generated_contents(seq, self.block_size, first, names_next=bool(self._num_behind))
