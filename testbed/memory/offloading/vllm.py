"""vLLM's OffloadingConnector over its CPU cache: what a request stores below the device, and loads
into slots that it holds meanwhile.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from testbed.core.sequence import Batch
from testbed.core.sequence import Sequence as Seq
from testbed.core.slots import (
    DEVICE,
    GRANTED,
    NO_HIT,
    NO_OPS,
    Answer,
    Answers,
    CacheHit,
    Grant,
    Keep,
    Move,
    NonSequenceSlots,
    Ops,
    Refusal,
    Transfer,
    ceil_div,
)
from testbed.core.units import PositiveTokens, Share
from testbed.memory.offloading.lower_tier import check_no_drafts, tier_below
from testbed.memory.offloading.request_lru import Request, RequestLru
from testbed.memory.policy import PoolSpec
from testbed.memory.prefix_cache.eviction.order import EvictionOrder
from testbed.memory.prefix_cache.hash_chain import Content
from testbed.memory.prefix_cache.output_caching import OutputCaching
from testbed.memory.prefix_cache.prefix_caching import CachedPrompt, PromptHit
from testbed.memory.prefix_cache.prefix_index import Key, Node
from testbed.memory.served import Drafts
from testbed.memory.tiers.cache_hierarchy import runs_of
from testbed.vllm.releases import DEFAULT, Release


@dataclass(slots=True)
class Offloaded:
    """A sequence between its first lookup and its end.

    Attributes:
        contents: of the full blocks of its prompt.
        request: its use of the cache.
        keys: of its full blocks, as far as they were needed.
        blocks: of the device, which it has given back.
        next_stored: the first block that was not offered to the cache yet.
        jobs: transfers of its blocks that have not landed.
    """

    contents: Sequence[Content] | None = None
    request: Request = field(default_factory=Request)
    keys: list[Key] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    next_stored: int = 0
    jobs: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Job:
    """A transfer of keys between the cache and blocks of the device; `watched`: its sequence holds
    these blocks no more.
    """

    request_id: int
    seq_id: int
    is_store: bool
    keys: list[Key]
    blocks: list[int]
    watched: bool = False


class VllmOffloading(OutputCaching):
    """Prefix caching as vLLM V1 has it, over one tier (server.tiers) as its OffloadingConnector
    uses it.

    At the end of each plan a sequence stores the full blocks that the plan computes, all or none;
    what did not fit is offered again in its next plan. With offload_prompt_only these are the
    prompt's. A hit is offered too, so that what the tier has lost is stored again. A prompt is
    looked up below up to its last full block, behind what the device has of it but for the last
    token: a prompt of whole blocks may wait for a block that the device has. It waits while what it
    would find is being written, or loaded for another sequence. A load takes its slots when it
    begins.

    A request of several sequences, which vLLM serves as several requests, neither stores nor loads
    here.

    Blocks that a store reads may be used again when their sequence has ended; vLLM's iteration then
    waits for the store, which lands at once here. The slots of a sequence that is cancelled while
    it loads are free at once, too.
    """

    def __init__(
        self,
        pool: PoolSpec,
        block_size: PositiveTokens = 16,
        watermark: Share = 0.0,
        eviction: EvictionOrder | None = None,
        release: Release = DEFAULT,
        drafts: Drafts = Drafts.NONE,
        offload_prompt_only: bool = True,
    ) -> None:
        tier = tier_below(pool, "vLLM's offloading has")
        check_no_drafts(drafts, "vLLM's offloading")
        super().__init__(pool, block_size, watermark, eviction, release, drafts)
        self._tier = RequestLru(tier.name, tier.num_slots // block_size, block_size)
        self._prompt_only = offload_prompt_only
        self._offloaded: dict[int, Offloaded] = {}
        self._jobs: dict[int, Job] = {}
        self._num_jobs = 0
        self._loading = set[Key]()  # on their way to the device; never iterated over
        self._used = set[int]()  # blocks that this plan's admissions and steps have taken
        self._flushed = list[int]()
        self._behind = False  # a sequence has blocks that the cache had no room for
        self._moved = {"loaded_blocks": 0, "stored_blocks": 0}

    def load_into_slots(
        self,
        seq: Seq,
        num_tokens: int,
        hit: CacheHit,
        must_fit: int,
        in_prefill: Iterable[tuple[Seq, int]],
    ) -> Answer:
        """See protocols.Offloads."""
        state = self._offloaded.setdefault(seq.seq_id, Offloaded())
        if state.jobs:
            return Refusal.LOADING
        state.next_stored = 0
        if not isinstance(hit, PromptHit) or hit.contents is None:
            return GRANTED
        state.contents = hit.contents
        nodes = hit.on_device(num_tokens)
        keys = self._keys(state, seq, num_tokens)[len(nodes) :]
        num_below, is_pending = self._tier.find(keys)
        keys = keys[:num_below]
        if is_pending or any(key in self._loading for key in keys):
            return Refusal.LOADING
        if not keys:
            return GRANTED
        total = len(nodes) + len(keys)
        reserved = sum(self._lacks(other, tokens) for other, tokens in in_prefill)
        needed = max(total + reserved, ceil_div(must_fit, self.block_size))
        if self._within_free(nodes, needed, len(nodes)) is None:
            return Refusal.LATER
        self._counts.add(seq, self.block_size, total)
        return self._load(seq, state, keys, nodes)

    def load(self, seq: Seq, num_tokens: int, hit: CacheHit) -> Answer:
        """Nothing: a sequence that is admitted has loaded what there is, into its slots."""
        return GRANTED

    def has_landed(self, seq: Seq) -> bool:
        """See protocols.Offloads."""
        return not self._offloaded[seq.seq_id].jobs

    def begin_stores(
        self,
        scheduled: Sequence[tuple[Seq, int]],
        preempted: Sequence[Seq],
        ended: Sequence[tuple[Seq, int]],
    ) -> Ops:
        """See protocols.Offloads."""
        self._behind = False
        for seq in preempted:
            if seq.seq_id in self._offloaded:
                self._flushed += sorted(self._offloaded[seq.seq_id].jobs)
        reused = [
            number
            for number, job in self._jobs.items()
            if job.watched and not self._used.isdisjoint(job.blocks)
        ]
        self._flushed += reused
        transfers = [self._store(seq, num_tokens) for seq, num_tokens in scheduled]
        for seq, num_tokens in ended:
            transfers.append(self._store(seq, num_tokens, has_ended=True))
        for seq, _ in ended:
            state = self._offloaded.pop(seq.seq_id, None)
            if state is not None:
                self._tier.finished(state.request)
        self._used.clear()
        return Ops(background=tuple(filter(None, transfers)))

    def request_of(self, move_id: int) -> int:
        """The request whose blocks a transfer under way reads or writes."""
        return self._jobs[move_id].request_id

    def background(self) -> Ops:
        """Stores that an iteration has waited for are over."""
        for number in dict.fromkeys(self._flushed):
            self.landed(number)
        self._flushed.clear()
        return NO_OPS

    def landed(self, move_id: int) -> None:
        job = self._jobs.pop(move_id, None)
        if job is None:
            return
        state = self._offloaded.get(job.seq_id)
        if state is not None:
            state.jobs.discard(move_id)
        if job.is_store:
            self._tier.stored(job.keys)
            return
        self._tier.end_read(job.keys)
        self._loading.difference_update(job.keys)

    def admit(self, seqs: list[Seq], num_tokens: int, hit: CacheHit | None = None) -> Answers:
        answers = super().admit(seqs, num_tokens, hit)
        if isinstance(answers, list):
            prompt = self._prompts.get(seqs[0].seq_id)
            state = self._offloaded.setdefault(seqs[0].seq_id, Offloaded())
            state.contents = None if prompt is None else prompt.contents
            self._used.update(self._tables.of(seqs[0]).blocks)
        return answers

    def fits(self, seq: Seq, num_tokens: int, hit: CacheHit = NO_HIT) -> bool:
        if seq.seq_id in self._tables.held:
            return self._lacks(seq, num_tokens) + self._reserve() <= self._pool.available()
        return super().fits(seq, num_tokens, hit)

    def extend(self, batch: Batch, num_tokens: int = 1) -> Answer:
        if not self._is_settled():
            before = [(table.blocks, len(table.blocks)) for table in map(self._tables.of, batch)]
            answer = super().extend(batch, num_tokens)
            for blocks, length in before:
                self._used.update(blocks[length:])
            return answer
        return super().extend(batch, num_tokens)

    def guaranteed_steps(self, batch: Batch) -> int:
        """None while a step may store a block, or take one that a store reads."""
        return super().guaranteed_steps(batch) if self._is_settled() else 0

    def tier_slots(self) -> Mapping[str, NonSequenceSlots]:
        return {self._tier.name: self._tier.slots()}

    def counters(self) -> Mapping[str, float]:
        return {**super().counters(), **self._moved, "evicted_below": self._tier.evicted}

    def check(self) -> None:
        super().check()
        self._tier.check()

    def _give_back(self, seq: Seq, keep: Keep) -> None:
        state, table = self._offloaded.get(seq.seq_id), self._tables.held.get(seq.seq_id)
        if state is not None and table is not None:
            state.blocks = list(table.blocks)
            for number in state.jobs:
                self._jobs[number].watched = True
        super()._give_back(seq, keep)

    def _is_settled(self) -> bool:
        """True if no step of those that decode can store a block, or take one that a store
        reads.
        """
        is_stepwise = self._behind or not self._prompt_only or bool(self._flushed)
        return not is_stepwise and not any(job.watched for job in self._jobs.values())

    def _keys(self, state: Offloaded, seq: Seq, num_tokens: int) -> list[Key]:
        full = num_tokens // self.block_size
        if full > len(state.keys):
            state.keys = self._first_keys(seq, state.contents or (), full)
        return state.keys[:full]

    def _lacks(self, seq: Seq, num_tokens: int) -> int:
        own = len(self._tables.of(seq).blocks)
        return max(ceil_div(num_tokens, self.block_size) - own, 0)

    def _load(self, seq: Seq, state: Offloaded, keys: list[Key], nodes: list[Node]) -> Grant:
        """Slots for what the device has, and for these keys behind it, which are loaded."""
        first, root = len(nodes), self._cache.index.root
        num_tokens = (first + len(keys)) * self.block_size
        self._ensure_free_with_hits(nodes, first + len(keys))
        blocks = self._allocate_tables([seq], num_tokens, [node.block for node in nodes])
        self._prompts[seq.seq_id] = CachedPrompt(
            state.contents or (), nodes[-1] if nodes else root, alone=True
        )
        self._used.update(blocks)
        state.next_stored = first + len(keys)
        source = self._tier.read(keys, first, state.request)
        self._loading.update(keys)
        self._moved["loaded_blocks"] += len(keys)
        job = self._add(Job(seq.request_id, seq.seq_id, False, keys, blocks[first:]))
        copies = runs_of(zip(source, blocks[first:], strict=True), self.block_size)
        return Grant(
            num_tokens, Ops(background=(Transfer(job, Move(self._tier.name, DEVICE, copies)),))
        )

    def _store(self, seq: Seq, num_tokens: int, *, has_ended: bool = False) -> Transfer | None:
        """Offer those full blocks of the first num_tokens tokens that were not offered yet."""
        state = self._offloaded.get(seq.seq_id)
        if state is None or state.contents is None:
            return None
        blocks = state.blocks if has_ended else self._tables.of(seq).blocks
        most = min(num_tokens, seq.prompt_len) if self._prompt_only else num_tokens
        first, end = state.next_stored, min(most // self.block_size, len(blocks))
        if end <= first:
            return None
        keys = self._keys(state, seq, end * self.block_size)[first:]
        new = [key for key in keys if not self._tier.has(key)]
        targets = self._tier.store(keys, first, state.request)
        if targets is None:
            self._behind = True
            return None
        state.next_stored = end
        if not new:
            return None
        positions = {key: i for i, key in enumerate(keys, first)}
        source = [blocks[positions[key]] for key in new]
        self._moved["stored_blocks"] += len(new)
        number = self._add(Job(seq.request_id, seq.seq_id, True, new, source, watched=has_ended))
        if has_ended and not self._used.isdisjoint(source):
            self._flushed.append(number)
        copies = runs_of(zip(source, targets, strict=True), self.block_size)
        return Transfer(number, Move(DEVICE, self._tier.name, copies))

    def _add(self, job: Job) -> int:
        self._num_jobs += 1
        self._jobs[self._num_jobs] = job
        self._offloaded[job.seq_id].jobs.add(self._num_jobs)
        return self._num_jobs
