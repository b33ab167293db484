"""Prefix caching over several tiers: what the device does not have is loaded from below, in the
background.
"""

from collections.abc import Iterable, Mapping, Sequence

from testbed.core.errors import InputError
from testbed.core.sequence import Batch
from testbed.core.sequence import Sequence as Seq
from testbed.core.slots import (
    DEVICE,
    GRANTED,
    HOST,
    NO_OPS,
    Answer,
    Answers,
    CacheHit,
    Grant,
    Keep,
    NonSequenceSlots,
    Ops,
    Refusal,
    Transfer,
    ceil_div,
)
from testbed.core.units import PositiveTokens, Share
from testbed.memory.paged.block_boundaries import BlockIndex
from testbed.memory.policy import PoolSpec
from testbed.memory.prefix_cache.eviction.order import EvictionOrder
from testbed.memory.prefix_cache.hash_chain import Content
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching, PromptHit
from testbed.memory.prefix_cache.prefix_index import Node
from testbed.memory.tiers.cache_hierarchy import ON_DEVICE, ON_THE_WAY, CacheHierarchy, Places
from testbed.memory.tiers.load_rules import LoadAlways, LoadRule
from testbed.memory.tiers.lower_tier import LowerTier, Use
from testbed.memory.tiers.pinned_pool import PinnedPool
from testbed.memory.tiers.store_rules import BeforeEviction, StoreRule, WriteBack, WriteThrough


class TieredHit(PromptHit):
    """A PromptHit whose nodes go on below: (place, node) of each, up to the first that is nowhere.

    tier_names: of the places, the device first.
    """

    __slots__ = ("behind", "tier_names")

    def __init__(
        self,
        seq: Seq,
        block_size: int,
        contents: Sequence[Content] | None,
        nodes: list[Node],
        behind: list[tuple[int, Node]],
        tier_names: list[str],
    ) -> None:
        super().__init__(seq, block_size, contents, nodes)
        self.behind = behind
        self.tier_names = tier_names

    def below(self, num_tokens: int) -> list[tuple[int, Node]]:
        """The nodes behind those on the device that an admission for num_tokens tokens may read."""
        num_rest = self.num_readable(num_tokens) - len(self.on_device(num_tokens))
        return self.behind[: max(num_rest, 0)]

    def by_place(self, num_tokens: int) -> Places:
        """The same nodes by place, in the order of the prompt."""
        places = Places()
        for place, node in self.below(num_tokens):
            places.setdefault(place, []).append(node)
        return places

    def num_below(self, num_tokens: int) -> dict[str, int]:
        lower = {at: nodes for at, nodes in self.by_place(num_tokens).items() if at > ON_DEVICE}
        return {self.tier_names[at]: len(nodes) * self.block_size for at, nodes in lower.items()}


class TieredCaching(PrefixCaching):
    """A prompt's blocks are looked up on the device and, block by block, in every tier below it but
    the swap space.

    Blocks below are loaded before the request is admitted. `store` chooses for the first tier,
    whose blocks go on to the next. With `exclusive` tiers a block leaves the first tier when it has
    been loaded, so that all together cache as much as one pool. Loads begin when a request is next,
    or among the first `prefetch` that wait.
    """

    def __init__(
        self,
        pool: PoolSpec,
        block_size: PositiveTokens = 16,
        watermark: Share = 0.01,
        eviction: EvictionOrder | None = None,
        store: StoreRule | None = None,
        load: LoadRule | None = None,
        exclusive: bool = False,
    ) -> None:
        self._spec = pool
        self._lower = [tier for tier in pool.tiers if tier.name != HOST]
        if not self._lower:
            raise InputError(
                key="policy",
                value="tiered",
                problem="the server has no tier",
                remedy="give +tier@server.tiers.dram=dram",
            )
        self._store = (WriteBack() if exclusive else WriteThrough()) if store is None else store
        self._load = LoadAlways() if load is None else load
        if exclusive and not isinstance(self._store, WriteBack | BeforeEviction):
            name = type(self._store).__name__
            raise InputError(
                key="policy.exclusive",
                problem=f"a loaded block is stored again only at its eviction, not by {name}",
            )
        super().__init__(pool, block_size=block_size, watermark=watermark, eviction=eviction)
        assert isinstance(self._cache, PinnedPool)
        self._device = self._cache
        tiers = [
            LowerTier(tier.name, tier.num_slots // block_size, block_size) for tier in self._lower
        ]
        self._hierarchy = CacheHierarchy(self._device, tiers, block_size, exclusive)
        self._to_store: list[dict[Node, Use]] = [{} for _ in tiers]  # of each tier, in order
        self._uses: dict[int, Use] = {}  # by seq_id, of what was admitted with a prompt
        self._refused: set[tuple[int, int]] = set()  # (seq_id, num_tokens) of loads

    def lookup(self, seq: Seq) -> TieredHit:
        hit = super().lookup(seq)
        contents = () if hit.contents is None else hit.contents
        below = self._hierarchy.look_up(hit.nodes, contents[len(hit.nodes) :])
        names = [DEVICE, *(tier.name for tier in self._lower)]
        return TieredHit(seq, self.block_size, hit.contents, hit.nodes, below, names)

    def admit(self, seqs: list[Seq], num_tokens: int, hit: CacheHit | None = None) -> Answers:
        answers = super().admit(seqs, num_tokens, hit)
        if isinstance(answers, list):
            self._use_hits(seqs[0])
            answers[0] = self._after_writes(answers[0])
        return answers

    def extend(self, batch: Batch, num_tokens: int = 1) -> Answer:
        answer = super().extend(batch, num_tokens)
        return self._after_writes(answer) if isinstance(answer, Grant) else answer

    def move(self, seqs: list[Seq], tier: str) -> Answer:
        answer = super().move(seqs, tier)
        if isinstance(answer, Refusal):
            return answer
        self._refused.clear()
        return self._after_writes(answer)

    def load(self, seq: Seq, num_tokens: int, hit: CacheHit) -> Answer:
        """Load the blocks below that a prompt would find, if the pool can take it with them; see
        protocols.Transfers.

        A refusal is remembered until something is released, moved or published, or has landed: an
        eviction, which may leave less to load, must not end it (clause 2 of the contract).
        """
        if (seq.seq_id, num_tokens) in self._refused:
            return Refusal.LATER
        if not isinstance(hit, TieredHit):
            return GRANTED
        on_device, below = hit.on_device(num_tokens), hit.by_place(num_tokens)
        stay, num_loading = on_device + below.pop(ON_DEVICE, []), len(below.pop(ON_THE_WAY, []))
        num_below, tiers = (
            sum(map(len, below.values())),
            [self._lower[place - 1] for place in below],
        )
        if not tiers or not self._load.is_worth(self._spec, tiers[0], num_below * self.block_size):
            return GRANTED
        total = max(ceil_div(num_tokens, self.block_size), len(stay) + num_loading + num_below)
        if total > self._capacity():
            return GRANTED
        if self._within_free(stay, total - num_loading, len(stay)) is None:
            self._refused.add((seq.seq_id, num_tokens))
            return Refusal.LATER
        transfers: list[Transfer] = []
        for load in self._hierarchy.pin_for_loads(below, stay, Use()):
            self._ensure_free(len(load.nodes))
            transfers.append(self._hierarchy.begin_load(load))
        return self._after_writes(Grant(ops=Ops(background=tuple(transfers))))

    def background(self) -> Ops:
        for node in self._store.ahead(self._device):
            self._choose([node], Use())
        if not any(self._to_store):
            return NO_OPS
        chosen, self._to_store = self._to_store, [{} for _ in self._to_store]
        stores = [
            self._hierarchy.begin_store(target, nodes) for target, nodes in enumerate(chosen, 1)
        ]
        return Ops(background=tuple(transfer for transfer in stores if transfer is not None))

    def _give_back(self, seq: Seq, keep: Keep) -> None:
        self._refused.clear()
        use = self._uses.pop(seq.seq_id, None)
        if use is not None:
            use.renew()
            self._touch(chain_to(self._prompts[seq.seq_id].node), use)
        super()._give_back(seq, keep)

    def landed(self, move_id: int) -> None:
        self._refused.clear()
        transfer = self._hierarchy.landed(move_id)
        for node, use in zip(transfer.nodes, transfer.uses, strict=False):
            self._choose([node], use, transfer.target + 1)

    def publish(self, seq: Seq, num_tokens: int) -> None:
        self._refused.clear()
        prompt = self._prompts.get(seq.seq_id)
        before = -1 if prompt is None else prompt.node.depth
        super().publish(seq, num_tokens)
        if prompt is not None:
            new = chain_to(prompt.node, before)
            self._choose(self._store.published(new), self._uses[seq.seq_id])

    def guaranteed_steps(self, batch: Batch) -> int:
        """No store begins within them, nor does an iteration wait for one."""
        index: BlockIndex = batch.indexes.get(self) or batch.index(self, self._index)
        if index.tails or not batch.sequences or self.has_stores():
            return 0
        num_blocks = self._store.guaranteed_blocks(self._device)
        if self._device.index.on_event is not None:  # see PrefixCaching.guaranteed_steps
            num_blocks = min(num_blocks, len(self._device.free))
        return min(index.steps_within(num_blocks), self._max_len)

    def tier_slots(self) -> Mapping[str, NonSequenceSlots]:
        return {tier.name: tier.slots() for tier in self._hierarchy.tiers}

    def lower_tiers(self) -> Mapping[str, LowerTier]:
        return {tier.name: tier for tier in self._hierarchy.tiers}

    def share_tiers(self, tiers: Mapping[str, LowerTier]) -> None:
        if self._store.at_eviction:
            raise InputError(
                key="policy.store",
                problem=(
                    f"{type(self._store).__name__} writes within an iteration, which is not "
                    "modelled on a link that engines share"
                ),
                remedy=(
                    "choose store=write_through, on_reuse or before_eviction, or "
                    "server.tiers.NAME.shared=false"
                ),
            )
        own = self.lower_tiers()
        for name, tier in tiers.items():
            if name not in own or tier.block_size != self.block_size:
                raise InputError(
                    key=f"server.tiers.{name}",
                    problem=(
                        f"has blocks of {tier.block_size} tokens, which an engine with blocks of "
                        f"{self.block_size} does not share"
                    ),
                    remedy="give all engines the tier, and one block_size",
                )
        self._hierarchy.share(tiers)

    def transfers_of(self, tier: str) -> tuple[list[int], list[int]]:
        return self._hierarchy.transfers_of(tier)

    def has_stores(self) -> bool:
        return any(self._to_store) or any(
            self._hierarchy.can_store(1, node) for node in self._store.ahead(self._device)
        )

    def leave_tiers(self) -> None:
        self._hierarchy.give_up()

    def counters(self) -> Mapping[str, float]:
        return {**super().counters(), **self._hierarchy.moved}

    def _evicting(self, node: Node) -> None:
        if self._store.at_eviction and self._hierarchy.write_back(node, use := Use()):
            self._choose([node], use, 2)

    def check(self) -> None:
        super().check()
        self._hierarchy.check()

    def _make_cache(self, num_blocks: int, order: EvictionOrder) -> PinnedPool:
        return PinnedPool(num_blocks, order, self._evicting)

    def _is_loading(self, hit: PromptHit, num_tokens: int) -> bool:
        below = hit.below(num_tokens)[:1] if isinstance(hit, TieredHit) else []
        return any(node in self._hierarchy.loading for _, node in below)

    def _use_hits(self, seq: Seq) -> None:
        """A prompt was admitted: the tiers see which of their blocks it has found."""
        prompt = self._prompts.get(seq.seq_id)
        if prompt is not None:
            found, use = chain_to(prompt.node), Use()
            self._uses[seq.seq_id] = use
            self._touch(found, use)
            self._choose(self._store.found(found), use)

    def _touch(self, nodes: list[Node], use: Use) -> None:
        for tier in self._hierarchy.tiers:
            tier.touch(nodes, use)

    def _within_free(self, nodes: list[Node], total: int, requested: int) -> list[Node] | None:
        pinned = sum(
            node.evictable and node.block in self._device.pins for node in nodes[:requested]
        )
        return super()._within_free(
            nodes, total - pinned, requested
        )  # pinned blocks are not available anyway

    def _choose(self, nodes: Iterable[Node], use: Use, target: int = 1) -> None:
        if target <= len(self._to_store):
            self._to_store[target - 1].update(dict.fromkeys(nodes, use))

    def _after_writes(self, grant: Grant) -> Grant:
        if not self._hierarchy.written:
            return grant
        return grant._replace(
            ops=grant.ops._replace(moves=(self._hierarchy.take_written(), *grant.ops.moves))
        )


def chain_to(node: Node, depth: int = -1) -> list[Node]:
    """The nodes behind this depth (the root has -1) up to `node`, in the order of the prompt."""
    nodes, at = [], node
    while at.depth > depth:
        nodes.append(at)
        assert at.parent is not None, "only the root has no parent"
        at = at.parent
    return nodes[::-1]
