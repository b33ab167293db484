"""Prefix caching: prompts with equal beginnings share full blocks until these are evicted."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import ClassVar

from testbed.core.sequence import Batch
from testbed.core.sequence import Sequence as Seq
from testbed.core.slots import (
    HOST,
    NO_GROWTH,
    NO_HIT,
    NO_OPS,
    Answer,
    Answers,
    CacheHit,
    Grant,
    Keep,
    Refusal,
    ceil_div,
    record,
)
from testbed.core.units import PositiveTokens, Share
from testbed.memory.paged.paged import BlockMemory
from testbed.memory.policy import PoolSpec
from testbed.memory.prefix_cache.caching_pool import CachingPool
from testbed.memory.prefix_cache.eviction.lru import Lru
from testbed.memory.prefix_cache.eviction.order import EvictionOrder, oracle_of
from testbed.memory.prefix_cache.hash_chain import Content, block_contents, hash_chain
from testbed.memory.prefix_cache.prefix_index import TOMBSTONE, Node, OnCacheEvent
from testbed.memory.protocols import ReadsColumns


class PromptHit(CacheHit):
    """The nodes of a sequence's leading blocks on the device, and of those behind that are below.

    contents: what the full blocks of its prompt store; None: nothing of it can be found. `nodes`
    may go on behind the prompt, if a preempted sequence finds its own generated blocks.
    num_dropped: blocks at the end of those that an admission would find, which are computed again.
    has_output: generated tokens follow the prompt, however many an admission asks slots for; None:
    they do if it asks for more than the prompt's.
    """

    __slots__ = ("block_size", "contents", "has_output", "nodes", "num_dropped", "prompt_len")

    def __init__(
        self,
        seq: Seq,
        block_size: int,
        contents: Sequence[Content] | None,
        nodes: list[Node],
        num_dropped: int = 0,
        has_output: bool | None = None,
    ) -> None:
        self.block_size = block_size
        self.prompt_len = seq.prompt_len
        self.contents = contents
        self.nodes = nodes
        self.num_dropped = num_dropped
        self.has_output = has_output

    def num_cached(self, num_tokens: int) -> int:
        return len(self.on_device(num_tokens)) * self.block_size

    def num_readable(self, num_tokens: int) -> int:
        """Blocks that an admission for num_tokens tokens may find. The one with the last prompt
        token is left out unless generated tokens follow: that token is computed again.
        """
        has_output = num_tokens > self.prompt_len if self.has_output is None else self.has_output
        return (self.prompt_len - (not has_output)) // self.block_size

    def on_device(self, num_tokens: int) -> list[Node]:
        """The nodes on the device that an admission for num_tokens tokens finds."""
        nodes = self.nodes
        if not nodes:
            return nodes
        end = len(nodes)
        if self.contents is None or end <= len(self.contents):
            readable = self.num_readable(num_tokens)
            end = end if end < readable else readable
        return nodes[: max(end - self.num_dropped, 0)] if self.num_dropped else nodes[:end]


@dataclass(slots=True)
class CachedPrompt:
    """The contents of a sequence's full prompt blocks, of which those up to `node` are indexed.

    alone: no other sequence of its group was admitted with it or forked from it.
    """

    contents: Sequence[Content]
    node: Node
    alone: bool


@dataclass(slots=True)
class CacheCounts:
    """Tokens that first admissions looked up and found; a sequence that returns after preemption is
    not counted again.
    """

    prompts: int = 0
    blocks: int = 0
    hit_blocks: int = 0
    tokens: int = 0
    hit_tokens: int = 0

    def by_name(self) -> dict[str, float]:
        """As dataclasses.asdict, which takes ten times as long."""
        return {name: getattr(self, name) for name in COUNTS}

    def add(self, seq: Seq, block_size: int, num_hits: int) -> bool:
        """An admission has found num_hits blocks; whether it counts."""
        if seq.num_preemptions or seq.prompt_ids is None:
            return False
        self.prompts += 1
        self.blocks += -(-seq.prompt_len // block_size)
        self.hit_blocks += num_hits
        self.tokens += seq.prompt_len
        self.hit_tokens += num_hits * block_size
        return True


COUNTS = tuple(field.name for field in fields(CacheCounts))
IS_EVICTABLE = attrgetter("evictable")


class PrefixCaching(BlockMemory):
    """Paged memory whose full prompt blocks are findable by content until evicted, also with a
    reference count of 0.

    A prompt finds all its full blocks up to the first that is missing, even beyond the chunk it is
    admitted for, as far as the pool's size allows to pin them. The block with the last prompt token
    is left out unless generated tokens follow, for that token is always computed again and must not
    be written where others read. Only prompts are published: generated tokens have no ids by which
    a prompt could find them. A sequence with a registered prefix shares that alone.

    A block is findable as soon as `publish` was called, before the iteration that stores its tokens
    has run. Sequences admitted in the same iteration share too: K and V of a layer are written
    before they are read.
    """

    max_block_size: ClassVar[int] = 512

    def __init__(
        self,
        pool: PoolSpec,
        block_size: PositiveTokens = 16,
        watermark: Share = 0.01,
        eviction: EvictionOrder | None = None,
    ) -> None:
        order = Lru() if eviction is None else eviction
        self._cache = self._make_cache(pool.num_slots // max(block_size, 1), order)
        self._oracle = oracle_of(order)
        self._columns_read = order.columns_read() if isinstance(order, ReadsColumns) else ()
        super().__init__(pool, block_size=block_size, watermark=watermark, blocks=self._cache)
        self._prompts: dict[int, CachedPrompt] = {}
        self._counts = CacheCounts()

    def foresee_prompts(self, prompts: Iterable[tuple[Sequence[int], int, int]]) -> None:
        """The content, tokens per id and length of every prompt in order of arrival, which only an
        order that is an oracle reads.
        """
        if self._oracle is None:
            return
        chain, size = self._cache.index.chain, self.block_size
        self._oracle.foresee(
            chain(block_contents(ids, each, length, size)) for ids, each, length in prompts
        )

    def columns_read(self) -> tuple[str, ...]:
        """See ReadsColumns: those of its eviction order."""
        return self._columns_read

    def lookup(self, seq: Seq) -> PromptHit:
        contents = self._contents(seq)
        nodes = [] if contents is None else self._match(seq, contents)
        return PromptHit(seq, self.block_size, contents, nodes)

    def admit(self, seqs: list[Seq], num_tokens: int, hit: CacheHit | None = None) -> Answers:
        first = seqs[0]
        prompt_hit = hit if isinstance(hit, PromptHit) else self.lookup(first)
        contents = prompt_hit.contents
        if contents is None:
            return super().admit(seqs, num_tokens)
        num_blocks = ceil_div(num_tokens, self.block_size)  # of each sequence
        num_shared = first.prompt_len // self.block_size  # whole blocks of the prompt
        num_others = len(seqs) - 1
        total = num_blocks + num_others * (num_blocks - num_shared)
        if total > self._capacity():
            return Refusal.NEVER
        if self._is_loading(prompt_hit, num_tokens):
            return Refusal.LOADING
        num_findable = num_shared if num_others else num_blocks
        nodes = self._within_free(prompt_hit.on_device(num_tokens), total, num_findable)
        if nodes is None:
            return Refusal.LATER
        nodes = nodes[:num_shared] if num_others else nodes
        if self._counts.add(first, self.block_size, len(nodes)) and self._oracle is not None:
            self._oracle.requested(self._cache.index.chain(contents))
        self._cache.missed(contents, nodes)
        self._ensure_free_with_hits(nodes, total)
        num_cached = len(nodes) * self.block_size
        self._allocate_tables(seqs, max(num_tokens, num_cached), [node.block for node in nodes])
        self._prompts[first.seq_id] = CachedPrompt(
            contents, nodes[-1] if nodes else self._cache.index.root, alone=not num_others
        )
        grant: Grant = record(Grant, (num_cached, NO_OPS, NO_GROWTH, NO_GROWTH, False))
        if not num_others:
            return [grant]
        return [grant, *[Grant(num_shared * self.block_size)] * num_others]

    def fits(self, seq: Seq, num_tokens: int, hit: CacheHit = NO_HIT) -> bool:
        prompt_hit = hit if isinstance(hit, PromptHit) else self.lookup(seq)
        if prompt_hit.contents is None:
            return super().fits(seq, num_tokens)
        num_blocks = ceil_div(num_tokens, self.block_size)
        return (
            self._within_free(prompt_hit.on_device(num_tokens), num_blocks, num_blocks) is not None
        )

    def publish(self, seq: Seq, num_tokens: int) -> None:
        prompt = self._prompts.get(seq.seq_id)
        if prompt is None:
            return
        node, contents = prompt.node, prompt.contents
        if node.block == TOMBSTONE:  # evicted since: it was an equal block of another sequence
            node = prompt.node = self._cache.index.root
        start, stop = node.depth + 1, num_tokens // self.block_size
        if stop > len(contents):
            stop = len(contents)
        if start < stop:
            blocks = self._tables.of(seq).blocks[start:stop]
            prompt.node = self._cache.publish(node, contents[start:stop], blocks)

    def _give_back(self, seq: Seq, keep: Keep) -> None:
        self._cache.order.session = seq.session
        if keep is Keep.NOTHING and seq.seq_id in self._tables.held:
            self._cache.unpublish(self._tables.of(seq).blocks)
        super()._give_back(seq, keep)
        self._prompts.pop(seq.seq_id, None)

    def move(self, seqs: list[Seq], tier: str) -> Answer:
        """On the host nothing is findable; what comes back has new blocks."""
        self._cache.order.session = seqs[0].session
        answer = super().move(seqs, tier)
        if isinstance(answer, Grant) and tier == HOST:
            for prompt in (
                self._prompts[seq.seq_id] for seq in seqs if seq.seq_id in self._prompts
            ):
                prompt.node = self._cache.index.root
        return answer

    def report_cache(self, on_event: OnCacheEvent) -> int:
        self._cache.index.on_event = on_event
        return self.block_size

    def prompt_codes(
        self, prompt_ids: Sequence[int], tokens_per_id: int, prompt_len: int
    ) -> Iterator[int]:
        size, index = self.block_size, self._cache.index
        readable = prompt_len - 1  # the last token is always computed again
        contents = block_contents(prompt_ids, tokens_per_id, readable, size)
        return hash_chain(index.root.code, contents, index.hash_of)

    def guaranteed_steps(self, batch: Batch) -> int:
        """See Predicts. If a listener follows evictions, each of them ends the promise, so that it
        is reported when it happens and not at the end of a span.
        """
        if self._cache.index.on_event is None:
            return super().guaranteed_steps(batch)
        return self._steps_within(batch, len(self._pool.free))

    def close_session(self, session: int) -> None:
        self._cache.order.close_session(session)

    def counters(self) -> Mapping[str, float]:
        return {**self._counts.by_name(), "evictions": self._cache.evictions}

    def check(self) -> None:
        self._cache.index.check()

    def _contents(self, seq: Seq) -> Sequence[Content] | None:
        """Contents of the full blocks of its prompt; None: it has a registered prefix, or no other
        request could ask for it.
        """
        if seq.prompt_ids is None or seq.registered_prefix in self._tables.prefixes:
            return None
        return block_contents(seq.prompt_ids, seq.tokens_per_id, seq.prompt_len, self.block_size)

    def _match(self, seq: Seq, contents: Sequence[Content]) -> list[Node]:
        return self._cache.index.match(contents)

    def _is_loading(self, hit: PromptHit, num_tokens: int) -> bool:
        """True if the block behind those found, if the admission may read it, is on its way to the
        device.
        """
        return False

    def _within_free(self, nodes: list[Node], total: int, requested: int) -> list[Node] | None:
        """The most of the nodes, found for a prompt, that can be referenced together with all the
        requested blocks.

        Blocks beyond the first `requested` are never a reason to refuse: if it were, an eviction
        could end a refusal.
        """
        num_slots = self._pool.available() - self._reserve() - total
        first = nodes[:requested]
        num_slots += len(first) - sum(map(IS_EVICTABLE, first))
        if num_slots < 0:
            return None
        for i in range(requested, len(nodes)):
            num_slots -= nodes[i].evictable
            if num_slots < 0:
                return nodes[:i]
        return nodes

    def _ensure_free_with_hits(self, nodes: list[Node], total: int) -> None:
        self._tables.live += self._cache.hold(nodes) * self.block_size
        self._ensure_free(max(total - len(nodes), 0))

    def _make_cache(self, num_blocks: int, order: EvictionOrder) -> CachingPool:
        return CachingPool(num_blocks, order)
