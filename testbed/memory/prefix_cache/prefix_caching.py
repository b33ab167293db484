"""Prefix caching: a prompt's full blocks are shared by content, with whoever asks and as long as they last."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from testbed.core.sequence import Sequence as Seq
from testbed.core.slots import Answer, Extent, Grant, Ops, Refusal, Tier, Unowned, Usage, ceil_div
from testbed.memory.paged.block_table import BlockTable
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec, UnsupportedError
from testbed.memory.prefix_cache.caching_pool import CachingPool
from testbed.memory.prefix_cache.eviction.lru import Lru
from testbed.memory.prefix_cache.eviction.order import EvictionOrder
from testbed.memory.prefix_cache.prefix_index import HOLE, Content, HashOf, Node, block_contents


@dataclass(slots=True)
class CachedPrompt:
    """The contents of a sequence's full prompt blocks, of which `found` were cached at admission.

    The first `published` of them are indexed up to `node`, by this sequence's blocks or by equal ones.
    """

    contents: Sequence[Content]
    found: int
    published: int
    node: Node


@dataclass(slots=True)
class CacheCounts:
    """What first admissions asked for and found; a sequence that comes back after preemption is not counted again."""

    prompts: int = 0
    blocks: int = 0
    hit_blocks: int = 0
    tokens: int = 0
    hit_tokens: int = 0


class PrefixCaching(Paged):
    """Paged memory whose full prompt blocks are findable by content, also when nobody holds them, until evicted.

    A prompt finds all its full blocks up to the first that is missing, even beyond the chunk it is admitted for, as
    far as there is room to pin them. The block with the last prompt token is left out unless generated tokens follow,
    for that token is always computed again and must not be written where others read. Only prompts are published:
    generated tokens have no ids that anybody could ask for. A sequence with a registered prefix shares that alone.

    A block is findable from the start of the next call after the one that gave it room, for its tokens are computed
    then. Sequences admitted in the same iteration share too: K and V of a layer are written before they are read.
    """

    caches_prefixes = True
    max_block_size = 512

    _pool: CachingPool

    def __init__(
        self,
        pool: PoolSpec,
        block_size: int = 16,
        watermark: float = 0.01,
        eviction: EvictionOrder | None = None,
        hash_of: HashOf = hash,
    ) -> None:
        super().__init__(pool, block_size, watermark)
        self._pool = self._tables.pool = CachingPool(
            self._pool.num_blocks, Lru() if eviction is None else eviction, hash_of
        )
        self._prompts: dict[int, CachedPrompt] = {}
        self._unpublished: dict[int, CachedPrompt] = {}
        self._newest = -1
        self.counts = CacheCounts()

    @property
    def evictions(self) -> int:
        """Findable blocks that had to go."""
        return self._pool.evictions

    @property
    def reads_future(self) -> bool:
        """Whether the eviction order must be fed by foresee()."""
        return self._pool.order.reads_future

    def foresee(self, prompts: Iterable[tuple[Sequence[int], int, int]]) -> None:
        """The content, tokens per id and length of every prompt in order of arrival, for an order that reads them."""
        if not self.reads_future:
            raise UnsupportedError(f"{type(self._pool.order).__name__} does not read the future")
        chain, size = self._pool.index.chain, self.block_size
        self._pool.order.foresee(chain(block_contents(ids, each, length, size)) for ids, each, length in prompts)

    def _admit(self, seq: Seq, num_tokens: int, more: int) -> Answer:
        self._publish()
        if seq.content is None or seq.prefix in self._prefixes:
            return super()._admit(seq, num_tokens, more)
        contents = block_contents(seq.content, seq.tokens_per_id, seq.prompt_len, self.block_size)
        own = ceil_div(num_tokens, self.block_size)
        if own + more > self._capacity():
            return Refusal.NEVER
        readable = seq.prompt_len if num_tokens > seq.prompt_len else seq.prompt_len - 1
        found = self._pool.index.match(contents[: readable // self.block_size])
        nodes = self._within_room(found, own, more)
        if nodes is None:
            return Refusal.LATER
        self._count(seq, contents, len(nodes))
        self._hold(seq, num_tokens, nodes)
        self._prompts[seq.seq_id] = prompt = CachedPrompt(
            contents, len(nodes), len(nodes), nodes[-1] if nodes else self._pool.index.root
        )
        if len(nodes) < len(contents):
            self._unpublished[seq.seq_id] = prompt
        return Grant(len(nodes) * self.block_size)

    def extend(self, seqs: Iterable[Seq], num_tokens: int) -> Answer:
        self._publish()
        return super().extend(seqs, num_tokens)

    def release(self, seq: Seq) -> None:
        self._publish()
        super().release(seq)
        self._prompts.pop(seq.seq_id, None)
        self._unpublished.pop(seq.seq_id, None)

    def withdraw(self, seq: Seq) -> None:
        self._publish()
        prompt = self._prompts.get(seq.seq_id)
        if prompt is not None:
            self._pool.withdraw(self._tables.of(seq).blocks[prompt.found :])
        self.release(seq)

    def fork(self, parent: Seq, child: Seq) -> Ops:
        self._publish()
        return super().fork(parent, child)

    def move(self, seqs: list[Seq], tier: Tier) -> Answer:
        self._publish()
        answer = super().move(seqs, tier)
        if isinstance(answer, Grant):
            for seq in seqs:
                self._moved(seq.seq_id, tier)
        return answer

    def usage(self) -> Usage:
        self._publish()
        size = self.block_size
        free, cached = len(self._pool.free) * size, self._pool.num_parked * size
        total = self._pool.num_blocks * size
        held = total - free - cached
        return Usage(total, self._tables.live, held, held, cached, free, free + cached, self._pool.num_saved * size)

    def unowned(self) -> Unowned:
        size = self.block_size
        return super().unowned()._replace(cached=tuple(Extent(b * size, size) for b in self._pool.parked()))

    def check(self) -> None:
        self._publish()
        super().check()

    def _within_room(self, found: list[Node], own: int, more: int) -> list[Node] | None:
        """The most of the found nodes that can be held with `own` blocks in all for the tokens asked for, `more` left.

        What lies beyond those `own` blocks is never a reason to refuse: if it were, an eviction could end a refusal.
        """
        room = len(self._pool.free) + self._pool.num_parked - self._reserve() - more
        room -= own - sum(not node.parked for node in found[:own])
        if room < 0:
            return None
        for i in range(own, len(found)):
            room -= found[i].parked
            if room < 0:
                return found[:i]
        return found

    def _hold(self, seq: Seq, num_tokens: int, nodes: list[Node]) -> None:
        """Give the sequence these nodes' blocks, and new ones for the rest of num_tokens."""
        cached = len(nodes) * self.block_size
        self._tables.live += self._pool.hold(nodes) * self.block_size + max(num_tokens - cached, 0)
        missing = max(ceil_div(num_tokens - cached, self.block_size), 0)
        self._make_room(missing)
        blocks = [node.block for node in nodes] + self._pool.take(missing)
        self._tables[seq.seq_id] = BlockTable(max(num_tokens, cached), blocks)

    def _make_room(self, needed: int, reserve: int = 0) -> bool:
        """Evict as many blocks as it takes, if there are enough."""
        short = needed - len(self._pool.free)
        if short + reserve > self._pool.num_parked:
            return False
        if short > 0:
            self._pool.evict(short)
        return True

    def _publish(self) -> None:
        """Index the full prompt blocks whose tokens were computed after the previous call."""
        for seq_id, prompt in list(self._unpublished.items()):
            table = self._tables[seq_id]
            full = min(table.num_tokens // self.block_size, len(prompt.contents))
            if prompt.node.block == HOLE:  # evicted since: it was an equal block of another sequence
                prompt.node, prompt.published = self._pool.index.root, 0
            part = slice(prompt.published, full)
            prompt.node = self._pool.publish(prompt.node, prompt.contents[part], table.blocks[part])
            prompt.published = full
            if full == len(prompt.contents):
                del self._unpublished[seq_id]

    def _moved(self, seq_id: int, tier: Tier) -> None:
        """On the host nothing is findable; what comes back has new blocks."""
        self._unpublished.pop(seq_id, None)
        if tier is Tier.DEVICE and seq_id in self._prompts:
            prompt = self._prompts[seq_id]
            prompt.node, prompt.published = self._pool.index.root, 0
            self._unpublished[seq_id] = prompt

    def _count(self, seq: Seq, contents: Sequence[Content], num_hits: int) -> None:
        """Sequences are first admitted in order of their ids: one that is not newer comes back."""
        if seq.seq_id <= self._newest:
            return
        self._newest = seq.seq_id
        counts = self.counts
        counts.prompts += 1
        counts.blocks += ceil_div(seq.prompt_len, self.block_size)
        counts.hit_blocks += num_hits
        counts.tokens += seq.prompt_len
        counts.hit_tokens += num_hits * self.block_size
        if self.reads_future:
            self._pool.order.asked(self._pool.index.chain(contents))
