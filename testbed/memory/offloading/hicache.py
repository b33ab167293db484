"""SGLang's HiCache (release 0.5.23): its prefix cache over a host pool, in a tree of runs."""

from collections import Counter
from collections.abc import Collection, Mapping

from testbed.core.errors import check_known
from testbed.core.sequence import Batch
from testbed.core.sequence import Sequence as Seq
from testbed.core.slots import (
    DEVICE,
    GRANTED,
    NO_OPS,
    Answer,
    Answers,
    CacheHit,
    Extent,
    Grant,
    Move,
    NonSequenceSlots,
    Ops,
    Transfer,
    Usage,
)
from testbed.core.units import Count, PositiveTokens
from testbed.memory.offloading.host_tree import HostRun, HostTree, Load, Write
from testbed.memory.offloading.lower_tier import tier_below
from testbed.memory.offloading.write_back_tree import WriteBackTree
from testbed.memory.paged.paged import extents_of_blocks
from testbed.memory.policy import PoolSpec
from testbed.memory.radix.radix import Radix, RadixHit, own_runs
from testbed.memory.radix.strategies import Strategy
from testbed.memory.radix.tree import Run
from testbed.memory.tiers.cache_hierarchy import runs_of

LEAST_LOADED = 10  # tokens: load_back_threshold
THRESHOLDS = {"write_through": 1, "write_through_selective": 2}  # by hicache_write_policy
WRITE_POLICIES = (*THRESHOLDS, "write_back")


class HostHit(RadixHit):
    """The tree's blocks on the device, up to `run`, and num_below blocks of the host behind them,
    up to `end`.
    """

    __slots__ = ("end", "num_blocks_below", "tier")

    def __init__(self, on_device: RadixHit, end: Run, num_below: int, tier: str) -> None:
        super().__init__(on_device.run, on_device.num_blocks, on_device.block_size)
        self.end = end
        self.num_blocks_below = num_below
        self.tier = tier

    def num_below(self, num_tokens: int) -> dict[str, int]:
        return {self.tier: self.num_blocks_below * self.block_size}


class HiCache(Radix):
    """SGLang's radix cache over one tier (server.tiers), as --enable-hierarchical-cache has it.

    hicache_write_policy decides when a run is written to the host: when the first sequence has
    published it (write_through), when the second has (write_through_selective), or when it leaves
    the device, which waits for that (write_back). A run is written whole or not at all, answers
    too. A request loads what the host has of it when it is admitted, in the same iteration, if that
    is LEAST_LOADED tokens and the device has room.

    Loads and the writes of write_back are time of the iteration that waits for them; SGLang
    computes a layer as soon as it is loaded. The storage behind the host
    (--hicache-storage-backend) is not modelled.
    """

    def __init__(
        self,
        pool: PoolSpec,
        block_size: PositiveTokens = 1,
        radix_eviction_policy: str = "lru",
        hicache_write_policy: str = "write_through",
        radix_eviction_policy_config: Mapping[str, Count] | None = None,
    ) -> None:
        tier = tier_below(pool, "HiCache has")
        super().__init__(pool, block_size, radix_eviction_policy, radix_eviction_policy_config)
        self._tier = tier.name
        num_blocks = tier.num_slots // block_size
        self.tree = tree_of(hicache_write_policy, num_blocks, self._tree.rank)
        self._tree = self.tree
        self._moves: list[Move] = []
        self._loads: dict[int, Load] = {}  # by seq_id
        self._ended: list[Load] = []
        self._writes: dict[int, list[Write]] = {}
        self._num_transfers = 0
        self.num_loaded = 0  # blocks

    # Lookups

    def lookup(self, seq: Seq) -> RadixHit:
        hit = super().lookup(seq)
        return self._on_both(hit)

    def match(self, seq: Seq, num_tokens: int) -> RadixHit:
        return self._on_both(super().match(seq, num_tokens))

    def _on_both(self, hit: RadixHit) -> HostHit:
        run, num_blocks = self.tree.on_device(hit.run, hit.num_blocks)
        on_device = RadixHit(run, num_blocks, self.block_size)
        return HostHit(on_device, hit.run, hit.num_blocks - num_blocks, self._tier)

    def load_hit(self, seq: Seq, hit: CacheHit) -> CacheHit:
        """See LoadsHits."""
        if not isinstance(hit, HostHit) or not hit.num_blocks_below:
            return hit
        end, num_below = hit.end, hit.num_blocks_below
        assert isinstance(end, HostRun)
        load = self.tree.begin_load(end)
        if num_below * self.block_size >= LEAST_LOADED:
            self._make_free(num_below)
        if num_below * self.block_size < LEAST_LOADED or len(self._pool.free) < num_below:
            self.tree.end_load(load)
            return RadixHit(hit.run, hit.num_blocks, self.block_size)
        self._take_written()
        pairs = self.tree.lift(load, self._pool.take(num_below))
        self._moves.append(Move(self._tier, DEVICE, runs_of(pairs, self.block_size)))
        self.num_loaded += num_below
        self._loads[seq.seq_id] = load
        loaded = RadixHit(end, hit.num_blocks + num_below, self.block_size)
        self.pin(loaded)
        self.unpin(hit)
        return loaded

    def end_load(self, seq: Seq) -> None:
        """See LoadsHits."""
        if (load := self._loads.pop(seq.seq_id, None)) is not None:
            self._ended.append(load)

    # Transfers

    def load(self, seq: Seq, num_tokens: int, hit: CacheHit) -> Answer:
        """Nothing: a scheduler that admits has loaded what there is; see LoadsHits."""
        return GRANTED

    def background(self) -> Ops:
        for load in self._ended:
            self.tree.end_load(load)
        if self._ended and self._doubles:
            self._drop_doubles()
        self._ended = []
        writes, self.tree.writes = self.tree.writes, []
        moves = self._take_moves()
        if not writes:
            return Ops(moves=moves) if moves else NO_OPS
        self._num_transfers += 1
        self._writes[self._num_transfers] = writes
        pairs = [pair for write in writes for pair in write.blocks]
        move = Move(DEVICE, self._tier, runs_of(pairs, self.block_size))
        return Ops(moves=moves, background=(Transfer(self._num_transfers, move),))

    def landed(self, move_id: int) -> None:
        for write in self._writes.pop(move_id):
            self.tree.landed(write)
        if self._doubles:
            self._drop_doubles()

    def _take_written(self) -> None:
        """Note what was written at once since the last call."""
        if isinstance(self.tree, WriteBackTree) and self.tree.written:
            pairs, self.tree.written = self.tree.written, []
            self._moves.append(Move(DEVICE, self._tier, runs_of(pairs, self.block_size)))

    def _take_moves(self) -> tuple[Move, ...]:
        self._take_written()
        moves, self._moves = self._moves, []
        return tuple(moves)

    # Slots

    def admit(self, seqs: list[Seq], num_tokens: int, hit: CacheHit | None = None) -> Answers:
        answers = super().admit(seqs, num_tokens, hit)
        if isinstance(answers, list) and (moves := self._take_moves()):
            answers[0] = answers[0]._replace(ops=Ops(moves=moves))
        return answers

    def extend(self, batch: Batch, num_tokens: int = 1) -> Answer:
        answer = super().extend(batch, num_tokens)
        if isinstance(answer, Grant) and (moves := self._take_moves()):
            return answer._replace(ops=Ops(moves=moves))
        return answer

    def guaranteed_steps(self, batch: Batch) -> int:
        """None while a transfer is under way, whose end is seen in the next plan."""
        under_way = self._writes or self.tree.writes or self._loads or self._ended
        return 0 if under_way else super().guaranteed_steps(batch)

    # Reports

    def repeated_reads(self, batch: Batch, others: Collection[Seq] = ()) -> int:
        """See CountsSharedReads: runs that are loaded or written are locked though in no table."""
        return self._read_again((*batch, *others))

    def usage(self) -> Usage:
        used, moving = super().usage(), self.tree.num_moving
        if self._doubles:
            moving += sum(len(run.blocks) for run in self._unlisted())
        moving *= self.block_size
        return used._replace(
            live=used.live - moving,
            held=used.held - moving,
            allocated=used.allocated - moving,
            saved=used.saved + moving,
            in_transit=moving,
        )

    def non_sequence_slots(self) -> NonSequenceSlots:
        known = extents_of_blocks(self.block_size)
        runs = [*self._unlisted(), *(run for run in self.tree if run.is_moving)]
        moving = sorted(block for run in runs for block in run.blocks)
        in_transit = tuple([known[block] for block in moving])
        return super().non_sequence_slots()._replace(in_transit=in_transit)

    def _unlisted(self) -> list[HostRun]:
        """Runs that a transfer needs, and of which every sequence has blocks of its own."""
        doubled = Counter(run for held in self._doubles.values() for _, run in own_runs(held))
        return [
            run
            for run, count in doubled.items()
            if isinstance(run, HostRun) and run.locks - count == run.num_moving > 0
        ]

    def tier_slots(self) -> Mapping[str, NonSequenceSlots]:
        """See StoresBelow."""
        kinds: tuple[list[Extent], list[Extent]] = ([], [])
        for run in self.tree:
            for block in run.host:
                extent = Extent(block * self.block_size, self.block_size)
                kinds[run.write is not None].append(extent)
        return {self._tier: NonSequenceSlots(cached=tuple(kinds[0]), in_transit=tuple(kinds[1]))}

    def counters(self) -> Mapping[str, float]:
        tree = self.tree
        moved = {"loaded_blocks": self.num_loaded, "stored_blocks": tree.num_written}
        return {**super().counters(), **moved, "evicted_below": tree.evicted_below}


def tree_of(write_policy: str, num_blocks: int, strategy: Strategy) -> HostTree:
    """The tree of this write policy over num_blocks blocks of the host. Raises InputError for
    another.
    """
    check_known("policy.hicache_write_policy", write_policy, WRITE_POLICIES)
    if write_policy == "write_back":
        return WriteBackTree(num_blocks, strategy)
    return HostTree(num_blocks, THRESHOLDS[write_policy], strategy)
