"""Paged memory with SGLang's prefix cache (release 0.5.23): prompts and answers in a tree."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain

from testbed.core.errors import InputError
from testbed.core.sequence import Batch
from testbed.core.sequence import Sequence as Seq
from testbed.core.slots import (
    NO_GROWTH,
    NO_HIT,
    NO_OPS,
    Answer,
    Answers,
    CacheHit,
    Extent,
    Footprint,
    Grant,
    Granular,
    Growth,
    Keep,
    NonSequenceSlots,
    Refusal,
    Usage,
    ceil_div,
    growth_of,
    record,
)
from testbed.core.units import Count, PositiveTokens
from testbed.memory.layouts import BlockLayout
from testbed.memory.leases import LeasingPolicy
from testbed.memory.paged.block_boundaries import BlockIndex
from testbed.memory.paged.block_pool import BlockPool
from testbed.memory.paged.block_table import BlockTable, Tables
from testbed.memory.paged.paged import extents_of_blocks
from testbed.memory.policy import PoolSpec
from testbed.memory.prefix_cache.prefix_caching import CacheCounts
from testbed.memory.radix.block_contents import ContentNames
from testbed.memory.radix.strategies import lru, strategy_named
from testbed.memory.radix.tree import Contents, RadixTree, Run, path


class RadixHit(CacheHit):
    """The first tokens of a sequence that the tree has; `run` ends with the last of them, or goes
    on behind them.
    """

    __slots__ = ("block_size", "num_blocks", "run")

    def __init__(self, run: Run, num_blocks: int, block_size: int) -> None:
        self.run = run
        self.num_blocks = num_blocks
        self.block_size = block_size

    def num_cached(self, num_tokens: int) -> int:
        return self.num_blocks * self.block_size


class Held(BlockTable):
    """The blocks of one sequence, of which the first num_shared are those of the tree up to the end
    of `run`, but for `own`: blocks that it was to compute when the tree had their content already.
    num_published: blocks that it has published itself.
    """

    __slots__ = ("contents", "num_published", "num_shared", "own", "run")

    def __init__(
        self, seq: Seq, blocks: list[int], contents: Contents, run: Run, num_shared: int
    ) -> None:
        super().__init__(seq, blocks)
        self.contents = contents
        self.run = run
        self.num_shared = num_shared
        self.num_published = 0
        self.own: set[int] = set()


class Radix(LeasingPolicy):
    """Blocks of block_size tokens, taken when needed; what was published stays in the tree until a
    leaf of it is evicted, as a whole, in the order of radix_eviction_policy.

    A prompt finds all that any sequence has published of its beginning, in whole blocks, but its
    last token. A scheduler that publishes a sequence when it ends (scheduler=sglang) leaves its
    answer in the tree too. When a sequence publishes what the tree has already, it reads the tree's
    blocks from then on, and gives its own back.
    """

    def __init__(
        self,
        pool: PoolSpec,
        block_size: PositiveTokens = 1,
        radix_eviction_policy: str = "lru",
        radix_eviction_policy_config: Mapping[str, Count] | None = None,
    ) -> None:
        if block_size > 512:
            raise InputError(
                key="block_size", value=block_size, problem="must be from 1 to 512 tokens"
            )
        super().__init__()
        self.block_size = block_size
        self._max_len = pool.max_len
        self._footprint = Granular(block_size)
        self._pool = BlockPool(pool.num_slots // block_size)
        self._tables = Tables(self._pool, block_size)
        rank = strategy_named(radix_eviction_policy, radix_eviction_policy_config, block_size)
        self._tree = RadixTree(rank)
        self._padding = 0  # slots of tables that store no token
        self._num_listed = 0  # blocks of all tables
        self._evictions = 0
        self._counts = CacheCounts()
        self._names = ContentNames(block_size)
        self._doubles: dict[int, Held] = {}

    # Lookups

    def lookup(self, seq: Seq) -> RadixHit:
        limit = (seq.prompt_len - 1) // self.block_size
        return RadixHit(*self._tree.find(self._contents(seq, limit), limit), self.block_size)

    def match(self, seq: Seq, num_tokens: int) -> RadixHit:
        """See PinsHits."""
        limit = num_tokens // self.block_size
        return RadixHit(*self._tree.match(self._contents(seq, limit), limit), self.block_size)

    def pin(self, hit: CacheHit) -> None:
        """See PinsHits."""
        if isinstance(hit, RadixHit):
            self._tree.lock(hit.run)

    def unpin(self, hit: CacheHit) -> None:
        """See PinsHits."""
        if isinstance(hit, RadixHit):
            self._tree.unlock(hit.run)

    def refresh(self, seq: Seq, num_tokens: int) -> None:
        """See PinsHits: of SGLang's strategies lru alone refreshes what waits."""
        if self._tree.rank is lru:
            self.match(seq, num_tokens)

    def depth_first(self, hits: Sequence[CacheHit]) -> list[int]:
        """See PinsHits."""
        root = self._tree.root
        runs = [hit.run if isinstance(hit, RadixHit) else root for hit in hits]
        return self._tree.depth_first(runs)

    def make_free(self, num_slots: int) -> None:
        """See PinsHits."""
        self._make_free(ceil_div(num_slots, self.block_size))

    def publish(self, seq: Seq, num_tokens: int) -> None:
        if self._doubles:
            self._drop_doubles()
        held: Held = self._of(seq)
        num_blocks = max(num_tokens // self.block_size, held.num_shared)
        held.contents = self._contents(seq, num_blocks)
        run, num_known = self._tree.insert(
            held.contents, held.blocks[:num_blocks], held.num_published, seq.priority
        )
        held.num_published = num_blocks
        of_prompt = seq.prompt_len // self.block_size
        if 0 < of_prompt < num_blocks:  # the answer is evicted without the prompt
            prompt = held.contents[:of_prompt]
            self._tree.insert(prompt, held.blocks[:of_prompt], of_prompt, seq.priority + 1)
        self._tree.lock(run)
        self._tree.unlock(held.run)
        if num_known > held.num_shared:
            held.own.update(range(held.num_shared, num_known))
            self._doubles[seq.seq_id] = held
        held.run, held.num_shared = run, num_blocks
        if self._doubles:
            self._drop_doubles()

    def _drop_doubles(self) -> None:
        """Keep one copy of content that both the tree and a sequence have in blocks. If the
        sequence's tokens are stored, it reads the tree's blocks and gives its own back; if not,
        the tree takes the sequence's blocks unless another sequence reads the tree's.
        """
        for seq_id, held in list(self._doubles.items()):
            if held.seq.num_stored // self.block_size > max(held.own):
                self._give_up_own(held)
            else:
                self._take_over(held)
            if not held.own:
                del self._doubles[seq_id]

    def _give_up_own(self, held: Held) -> None:
        held.seq.change_table()
        self._pool.put([held.blocks[i] for i in held.own])
        known = blocks_of(held.run)
        for i in held.own:
            held.blocks[i] = known[i]
        held.own = set()

    def _take_over(self, held: Held) -> None:
        """The tree takes the sequence's own blocks if the others are in no table."""
        doubled = Counter(run for other in self._doubles.values() for _, run in own_runs(other))
        for start, run in own_runs(held):
            if run.locks == doubled[run]:
                end = start + len(run.key)
                self._pool.put(run.blocks)
                run.blocks = held.blocks[start:end]
                held.own -= {*range(start, end)}

    def _contents(self, seq: Seq, num_blocks: int) -> Contents:
        """The content of the first num_blocks blocks: of the prompt, then the sequence's own."""
        return self._names.of(seq, num_blocks)

    # Slots

    def admit(self, seqs: list[Seq], num_tokens: int, hit: CacheHit | None = None) -> Answers:
        first, num_others = seqs[0], len(seqs) - 1
        found = hit if isinstance(hit, RadixHit) else self.lookup(first)
        num_blocks = ceil_div(num_tokens, self.block_size)
        if num_blocks * len(seqs) > self._pool.num_blocks:
            return Refusal.NEVER
        if not self._fits(found, max(num_blocks - found.num_blocks, 0) + num_others * num_blocks):
            return Refusal.LATER
        contents = self._contents(first, found.num_blocks)
        run, num_cached = self._tree.match(contents, found.num_blocks)
        self._tree.lock(run)
        self._counts.add(first, self.block_size, num_cached)
        cached = blocks_of(run)
        self._hold(Held(first, cached, contents, run, num_cached), num_tokens)
        for seq in seqs[1:]:
            self._hold(Held(seq, [], (), self._tree.root, 0), num_tokens)
        return [Grant(num_cached * self.block_size), *[Grant()] * num_others]

    def _hold(self, held: Held, num_tokens: int) -> None:
        size, blocks = self.block_size, held.blocks
        missing = max(ceil_div(num_tokens, size) - len(blocks), 0)
        self._make_free(missing)
        blocks += self._pool.take(missing)
        self._tables.held[held.seq.seq_id] = held
        self._num_listed += len(blocks)
        self._padding += len(blocks) * size - max(num_tokens, held.num_shared * size)

    def fits(self, seq: Seq, num_tokens: int, hit: CacheHit = NO_HIT) -> bool:
        found = hit if isinstance(hit, RadixHit) else self.lookup(seq)
        missing = ceil_div(num_tokens, self.block_size) - found.num_blocks
        return self._fits(found, max(missing, 0))

    def _fits(self, hit: RadixHit, num_blocks: int) -> bool:
        """True if num_blocks blocks can be had besides those of the hit."""
        left = self._available() - self._tree.evictable_in(hit.run, hit.num_blocks)
        return num_blocks <= left or not num_blocks

    def extend(self, batch: Batch, num_tokens: int = 1) -> Answer:
        index: BlockIndex = batch.indexes.get(self) or batch.index(self, self._index)
        num_seqs, needed = len(batch.sequences), index.needed(num_tokens)
        if needed > self._available():
            return Refusal.LATER
        evicted = NO_GROWTH
        if needed + num_seqs > len(self._pool.free):
            evicted = self._evict_for_steps(index, num_tokens)
        self._padding += needed * self.block_size - num_tokens * num_seqs
        self._num_listed += needed
        return record(Grant, (0, NO_OPS, index.grow(num_tokens), evicted, False))

    def _evict_for_steps(self, index: BlockIndex, num_steps: int) -> Growth:
        """Evict as SGLang does before each of these steps, which it does for a block of every
        sequence, whether it needs one or not; what was evicted, by step.
        """
        num_seqs, events, before = len(index.batch.sequences), [], 0
        for step in range(num_steps):
            after = index.needed(step + 1)
            if gone := self._make_free(max(after, before + num_seqs)):
                events.append((step, gone * self.block_size))
            before = after
        return growth_of(events)

    def guaranteed_steps(self, batch: Batch) -> int:
        """See Predicts. An eviction, which is of a whole run, ends the promise."""
        index: BlockIndex = batch.indexes.get(self) or batch.index(self, self._index)
        num_free, num_seqs = len(self._pool.free), len(batch.sequences)
        if self.block_size > 1 and self._tree.num_evictable:
            num_free -= num_seqs
        if not num_seqs or num_free < 0:
            return 0
        return min(index.steps_within(num_free), self._max_len)

    def footprint(self, seq: Seq) -> Footprint:
        return self._footprint

    def max_seq_len(self, prompt_len: int, num_seqs: int) -> int:
        return self._pool.num_blocks // num_seqs * self.block_size

    def _give_back(self, seq: Seq, keep: Keep) -> None:
        held: Held = self._of(seq)
        self._num_listed -= len(held.blocks)
        self._padding -= len(held.blocks) * self.block_size - seq.num_slots
        del self._tables.held[seq.seq_id]
        self._doubles.pop(seq.seq_id, None)
        self._pool.put([held.blocks[i] for i in held.own] + held.blocks[held.num_shared :])
        self._tree.unlock(held.run)
        if self._doubles:
            self._drop_doubles()
        run = held.run
        while keep is Keep.NOTHING and not (run.locks or run.children) and run.parent is not None:
            parent = run.parent
            self._pool.put(self._tree.drop(run))
            run = parent

    # Reports

    def table(self, seq: Seq) -> list[Extent]:
        known = extents_of_blocks(self.block_size)
        return list(map(known.__getitem__, self._of(seq).blocks))

    def usage(self) -> Usage:
        size, num_free, cached = self.block_size, len(self._pool.free), self._tree.num_evictable
        held = self._num_held()
        total, most = self._pool.num_blocks * size, (num_free + cached) * size
        live, saved = held * size - self._padding, (self._num_listed - held) * size
        return record(
            Usage,
            (total, live, held * size, held * size, cached * size, num_free * size, most, saved, 0),
        )

    def repeated_reads(self, batch: Batch, others: Collection[Seq] = ()) -> int:
        """See CountsSharedReads. If these are all sequences with slots and nothing else locks a
        run, what all tables list more than once.
        """
        num_seqs = len(batch) + len(others)
        if num_seqs == len(self._tables.held) == self._tree.num_locks and not self._doubles:
            return (self._num_listed - self._num_held()) * self.block_size
        return self._read_again((*batch, *others))

    def _read_again(self, seqs: Iterable[Seq]) -> int:
        """Runs of the tree that these sequences read, each once."""
        num_read, seen = 0, set[Run]()
        for held in map(self._of, seqs):
            own = {run for _, run in own_runs(held)} if held.own else ()
            num_read += held.num_shared - len(held.own)
            run = held.run
            while run.parent is not None and run not in seen:
                if run not in own:
                    seen.add(run)
                run = run.parent
        return (num_read - sum([len(run.key) for run in seen])) * self.block_size

    def layout(self) -> BlockLayout:
        return BlockLayout(self.block_size)

    def non_sequence_slots(self) -> NonSequenceSlots:
        known = extents_of_blocks(self.block_size)
        blocks = chain.from_iterable([run.blocks for run in self._tree if not run.locks])
        return NonSequenceSlots(cached=tuple(map(known.__getitem__, sorted(blocks))))

    def counters(self) -> Mapping[str, float]:
        return {**self._counts.by_name(), "evictions": self._evictions}

    def check(self) -> None:
        super().check()
        self._tree.check()
        held: Iterable[Held] = self._tables.held.values()  # type: ignore[assignment]
        assert self._num_listed == sum(len(table.blocks) for table in held), "blocks are miscounted"
        for table in held:
            shared = [i for i in range(table.num_shared) if i not in table.own]
            known = blocks_of(table.run)
            assert all(table.blocks[i] == known[i] for i in shared), "not the tree's blocks"

    def _of(self, seq: Seq) -> Held:
        held = self._tables.of(seq)
        assert isinstance(held, Held)
        return held

    def _num_held(self) -> int:
        return self._pool.num_blocks - len(self._pool.free) - self._tree.num_evictable

    def _available(self) -> int:
        return len(self._pool.free) + self._tree.num_evictable

    def _make_free(self, num_blocks: int) -> int:
        """Evict until num_blocks blocks are free, or nothing more can be evicted; how many were."""
        missing = num_blocks - len(self._pool.free)
        if missing <= 0 or not self._tree.num_evictable:
            return 0
        gone = self._tree.evict(missing)
        self._pool.put(gone)
        self._evictions += len(gone)
        return len(gone)

    def _index(self, batch: Batch) -> BlockIndex:
        return BlockIndex(batch, self._tables, self._pool)


def own_runs(held: Held) -> list[tuple[int, Run]]:
    """The runs whose content a sequence has in blocks of its own, and the index of their first."""
    end, runs = held.num_shared, []
    for run in path(held.run):
        end -= len(run.key)
        if end in held.own:
            runs.append((end, run))
    return runs


def blocks_of(run: Run) -> list[int]:
    """The blocks up to the end of the run, in order."""
    return list(chain.from_iterable([node.blocks for node in path(run)][::-1]))
