"""LMCache's connector for vLLM V1 over its local CPU cache (release 0.5.6): whole chunks, which an
iteration stores, and loads into the slots of what it admits.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from testbed.core.errors import InputError
from testbed.core.sequence import Batch
from testbed.core.sequence import Sequence as Seq
from testbed.core.slots import (
    DEVICE,
    GRANTED,
    NO_OPS,
    Answer,
    Answers,
    CacheHit,
    Move,
    NonSequenceSlots,
    Ops,
)
from testbed.core.units import NumTokens, PositiveTokens, Share
from testbed.memory.offloading.chunk_lru import ChunkLru
from testbed.memory.offloading.lower_tier import check_no_drafts, tier_below
from testbed.memory.policy import PoolSpec
from testbed.memory.prefix_cache.eviction.order import EvictionOrder
from testbed.memory.prefix_cache.hash_chain import Content
from testbed.memory.prefix_cache.output_caching import OutputCaching
from testbed.memory.prefix_cache.prefix_caching import PromptHit
from testbed.memory.prefix_cache.prefix_index import Key
from testbed.memory.served import Drafts
from testbed.memory.tiers.cache_hierarchy import runs_of
from testbed.vllm.releases import DEFAULT, Release

NEW, RESUMED, OTHERS = range(3)


class ChunkHit(PromptHit):
    """The part of a prompt that the device has; num_loaded: tokens behind that which an admission
    loads.
    """

    __slots__ = ("num_loaded",)

    def __init__(self, seq: Seq, hit: PromptHit) -> None:
        parts = hit.block_size, hit.contents, hit.nodes, hit.num_dropped, hit.has_output
        super().__init__(seq, *parts)
        self.num_loaded = 0

    def num_cached(self, num_tokens: int) -> int:
        return super().num_cached(num_tokens) + self.num_loaded


@dataclass(slots=True)
class Tracked:
    """LMCache's counts of a sequence, in tokens.

    contents: of the full blocks of its prompt. pinned: chunks that its lookup has found; is_looked
    up: it has not been admitted since. num_saved: those that need not be stored. num_computed:
    those of its last plan. num_tokens: those that LMCache has counted until then. is_decoding: a
    plan had one token of it; nothing is stored from then on. place: in the order of a plan's
    stores: new requests, resumed ones, all others.
    """

    contents: Sequence[Content] | None = None
    keys: list[Key] = field(default_factory=list)
    pinned: list[Key] = field(default_factory=list)
    is_looked_up: bool = False
    is_loaded: bool = False
    is_admitted: bool = False
    num_saved: int = 0
    num_tokens: int = 0
    num_computed: int = 0
    is_decoding: bool = False
    place: int = NEW


class LMCache(OutputCaching):
    """Prefix caching as vLLM V1 has it, over one tier (server.tiers) as LMCacheConnectorV1 uses it.

    A request is looked up below, in whole chunks of chunk_size tokens, when it is next; what is
    found stays until it is admitted. It loads what is behind the hit on the device, if that has
    min_retrieve_tokens, in the iteration that computes the rest; of a prompt that is found whole,
    one token is computed. At the end of an iteration each of its requests stores the chunks that it
    has filled, new requests first, in order until there is no room; a chunk that is there already
    takes room meanwhile. From the first iteration with one token of a request on nothing is stored,
    unless save_decode_cache says so.

    Loads and stores are time of the iteration that waits for them. Of a chunk that the device has
    in part, LMCache copies that part again, which is not charged here.
    """

    def __init__(
        self,
        pool: PoolSpec,
        block_size: PositiveTokens = 16,
        watermark: Share = 0.0,
        eviction: EvictionOrder | None = None,
        release: Release = DEFAULT,
        drafts: Drafts = Drafts.NONE,
        chunk_size: PositiveTokens = 256,
        save_decode_cache: bool = False,
        min_retrieve_tokens: NumTokens = 0,
    ) -> None:
        tier = tier_below(pool, "LMCache's CPU cache is")
        check_no_drafts(drafts, "LMCache")
        if chunk_size % block_size:
            raise InputError(
                key="policy.chunk_size",
                value=chunk_size,
                problem=f"is no multiple of policy.block_size={block_size}",
                remedy="give one",
            )
        super().__init__(pool, block_size, watermark, eviction, release, drafts)
        self.tier = ChunkLru(tier.name, tier.num_slots // chunk_size, chunk_size)
        self._saves_decodes = save_decode_cache
        self._least_loaded = min_retrieve_tokens
        self._tracked: dict[int, Tracked] = {}
        self._moved = {"loaded_tokens": 0, "stored_tokens": 0}

    # Lookups

    def lookup(self, seq: Seq) -> ChunkHit:
        return ChunkHit(seq, super().lookup(seq))

    def load_into_slots(
        self,
        seq: Seq,
        num_tokens: int,
        hit: CacheHit,
        must_fit: int,
        in_prefill: Iterable[tuple[Seq, int]],
    ) -> Answer:
        """See protocols.Offloads: nothing yet; the hit says what an admission with it loads."""
        if not isinstance(hit, ChunkHit) or hit.contents is None:
            return GRANTED
        state = self._tracked.setdefault(seq.seq_id, Tracked())
        if not state.is_looked_up:
            state.contents, state.is_looked_up = hit.contents, True
            self.tier.unpin(state.pinned)
            state.pinned = self.tier.look_up(self._chunk_keys(state, seq, num_tokens))
        found = len(state.pinned) * self.tier.chunk_size
        on_device = len(hit.on_device(num_tokens)) * self.block_size
        lacking = found - on_device - (found == num_tokens)
        hit.num_loaded = lacking if lacking >= max(self._least_loaded, 1) else 0
        return GRANTED

    def admit(self, seqs: list[Seq], num_tokens: int, hit: CacheHit | None = None) -> Answers:
        answers = super().admit(seqs, num_tokens, hit)
        state = self._tracked.get(seqs[0].seq_id)
        if not isinstance(answers, list) or state is None or not isinstance(hit, ChunkHit):
            return answers
        state.is_looked_up, state.is_admitted = False, True
        state.num_tokens, state.is_decoding = 0, False
        state.num_saved = len(state.pinned) * self.tier.chunk_size
        state.is_loaded = hit.num_loaded > 0
        if state.is_loaded:
            first = answers[0].num_cached
            total = first + hit.num_loaded
            self._count_loaded(seqs[0], hit.num_loaded)
            moves = (self._load(seqs[0], state, first, total),)
            answers[0] = answers[0]._replace(num_cached=total, ops=Ops(moves=moves))
        return answers

    def _count_loaded(self, seq: Seq, num_tokens: int) -> None:
        self._moved["loaded_tokens"] += num_tokens
        if not seq.num_preemptions and seq.prompt_ids is not None:
            self._counts.hit_blocks += num_tokens // self.block_size
            self._counts.hit_tokens += num_tokens

    def _load(self, seq: Seq, state: Tracked, first: int, end: int) -> Move:
        size, per_chunk = self.block_size, self.tier.chunk_size // self.block_size
        pairs: list[tuple[int, int]] = []
        for i in range(first // size, -(-end // size)):
            chunk = self.tier.chunks[state.pinned[i // per_chunk]]
            pairs.append((chunk * per_chunk + i % per_chunk, self._tables.of(seq).blocks[i]))
        return Move(self.tier.name, DEVICE, runs_of(pairs, size))

    # Stores

    def begin_stores(
        self,
        scheduled: Sequence[tuple[Seq, int]],
        preempted: Sequence[Seq],
        ended: Sequence[tuple[Seq, int]],
    ) -> Ops:
        """See protocols.Offloads: chunks land within the iteration."""
        for seq in preempted:
            if seq.seq_id in self._tracked:
                self._tracked[seq.seq_id].place = RESUMED
        known = [
            (self._tracked[seq.seq_id], seq, num_tokens)
            for seq, num_tokens in scheduled
            if seq.seq_id in self._tracked
        ]
        for state, _, _ in known:
            if state.is_admitted and state.is_loaded:
                self._unpin(state)
        moves = [self._save(*each) for each in sorted(known, key=lambda each: each[0].place)]
        for seq, _ in ended:
            if (over := self._tracked.pop(seq.seq_id, None)) is not None:
                self._unpin(over)
        pairs = [pair for move in moves for pair in move]
        if not pairs:
            return NO_OPS
        return Ops(moves=(Move(DEVICE, self.tier.name, runs_of(pairs, self.block_size)),))

    def _track(self, state: Tracked, seq: Seq, num_computed: int) -> bool:
        """A plan computes a sequence up to num_computed tokens; whether it has admitted it. Of a
        resumed request LMCache knows the prompt alone, behind which its count stays.
        """
        was_admitted, new = state.is_admitted, num_computed - state.num_computed
        if was_admitted:
            state.num_tokens = min(num_computed, seq.prompt_len)
        else:
            state.is_decoding |= new == 1
            state.num_tokens += new
        state.num_computed, state.place, state.is_admitted = num_computed, OTHERS, False
        return was_admitted

    def _save(self, state: Tracked, seq: Seq, num_computed: int) -> list[tuple[int, int]]:
        """The blocks that a request stores when a plan has computed num_computed tokens, with the
        tier's (ReqMeta.from_request_tracker, wait_for_save).
        """
        was_admitted = self._track(state, seq, num_computed)
        num_tokens = state.num_tokens
        size = self.tier.chunk_size
        boundary = (state.num_saved // size + 1) * size
        is_short = state.num_saved > 0 and num_tokens < boundary
        skips = is_short or (state.is_decoding and not self._saves_decodes)
        if skips and not was_admitted:
            return []
        self._unpin(state)
        if skips:
            return []
        first, state.num_saved = state.num_saved // size, num_tokens // size * size
        keys = self._chunk_keys(state, seq, state.num_saved)[first:]
        per_chunk, blocks = size // self.block_size, self._tables.of(seq).blocks
        pairs: list[tuple[int, int]] = []
        for i, chunk in self.tier.store(keys):
            at = (first + i) * per_chunk
            targets = range(chunk * per_chunk, (chunk + 1) * per_chunk)
            pairs += zip(blocks[at : at + per_chunk], targets, strict=True)
        self._moved["stored_tokens"] += len(pairs) * self.block_size
        return pairs

    def _unpin(self, state: Tracked) -> None:
        self.tier.unpin(state.pinned)
        state.pinned = []

    def _chunk_keys(self, state: Tracked, seq: Seq, num_tokens: int) -> list[Key]:
        per_chunk = self.tier.chunk_size // self.block_size
        full = num_tokens // self.tier.chunk_size
        if full > len(state.keys):
            of_blocks = self._first_keys(seq, state.contents or (), full * per_chunk)
            state.keys = of_blocks[per_chunk - 1 :: per_chunk]
        return state.keys[:full]

    def has_landed(self, seq: Seq) -> bool:
        """See protocols.Offloads: nothing is on its way beyond an iteration."""
        return True

    def load(self, seq: Seq, num_tokens: int, hit: CacheHit) -> Answer:
        """Nothing: an admission loads."""
        return GRANTED

    def background(self) -> Ops:
        """Nothing: iterations wait for all transfers."""
        return NO_OPS

    def landed(self, move_id: int) -> None:
        """Nothing is on its way."""

    # Reports

    def guaranteed_steps(self, batch: Batch) -> int:
        """None while a step may store a chunk."""
        return 0 if self._saves_decodes else super().guaranteed_steps(batch)

    def tier_slots(self) -> Mapping[str, NonSequenceSlots]:
        """See StoresBelow."""
        return {self.tier.name: self.tier.slots()}

    def counters(self) -> Mapping[str, float]:
        evicted = self.tier.evicted * self.tier.chunk_size
        return {**super().counters(), **self._moved, "evicted_tokens_below": evicted}

    def check(self) -> None:
        super().check()
        self.tier.check()
