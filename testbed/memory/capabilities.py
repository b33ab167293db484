"""The capabilities of a memory policy: found out here alone."""

from collections.abc import Collection, Mapping
from typing import get_args, get_type_hints

from testbed.core.errors import InputError
from testbed.core.sequence import Batch, Sequence
from testbed.core.slots import (
    NO_HIT,
    Answer,
    Answers,
    CacheHit,
    Footprint,
    GroupTable,
    NonSequenceSlots,
    Ops,
    Refusal,
    copies_between,
)
from testbed.memory.layouts import Layout, PageLayout
from testbed.memory.policy import MemoryPolicy
from testbed.memory.pools import PoolSpec
from testbed.memory.protocols import (
    CopiesPrompts,
    CountsSharedReads,
    CutsChunks,
    DropsTokens,
    Estimates,
    FollowsSessions,
    ForeseesPrompts,
    Forks,
    LaidOut,
    Layered,
    Leases,
    ListsOtherSlots,
    LoadsHits,
    Offloads,
    PinsHits,
    Predicts,
    Publishes,
    ReadsColumns,
    RegistersPrefixes,
    ReportsCache,
    ServesInTurn,
    SharesTiers,
    StoresBelow,
    Swaps,
    Transfers,
    Truncates,
)
from testbed.memory.shared_reads import read_again

# The capabilities without which one makes no sense.
NEEDS: Mapping[type, tuple[type, ...]] = {
    RegistersPrefixes: (Forks, ListsOtherSlots),
    Truncates: (Estimates,),
    PinsHits: (Publishes,),
    LoadsHits: (PinsHits, Transfers),
    Transfers: (Publishes,),
    Offloads: (Transfers, Estimates),
    Layered: (LaidOut, ServesInTurn, Predicts),
    SharesTiers: (Transfers, StoresBelow),
}


class Capabilities:
    """A policy, and for each capability the policy itself or None.

    `policy` answers the required calls; code that needs more asks here for the capability. The
    methods answer for every policy, by the capability or by what goes without it. give_tokens:
    `fork` of sequences whose tables are known to change.
    """

    predicts: Predicts | None
    forks: Forks | None
    copies_prompts: CopiesPrompts | None
    registers_prefixes: RegistersPrefixes | None
    publishes: Publishes | None
    estimates: Estimates | None
    pins_hits: PinsHits | None
    loads_hits: LoadsHits | None
    truncates: Truncates | None
    swaps: Swaps | None
    leases: Leases | None
    transfers: Transfers | None
    offloads: Offloads | None
    drops_tokens: DropsTokens | None
    layered: Layered | None
    serves_in_turn: ServesInTurn | None
    cuts_chunks: CutsChunks | None
    counts_shared_reads: CountsSharedReads | None
    laid_out: LaidOut | None
    lists_other_slots: ListsOtherSlots | None
    reports_cache: ReportsCache | None
    stores_below: StoresBelow | None
    shares_tiers: SharesTiers | None
    follows_sessions: FollowsSessions | None
    reads_columns: ReadsColumns | None
    foresees_prompts: ForeseesPrompts | None

    def __init__(self, policy: MemoryPolicy, protocols: Collection[type]) -> None:
        self.policy = policy
        for name, protocol in PROTOCOLS.items():
            setattr(self, name, policy if protocol in protocols else None)
        self.give_tokens = self._copy_tokens if self.forks is None else self.forks.fork

    @property
    def name(self) -> str:
        """The policy's class, for messages."""
        return type(self.policy).__name__

    @property
    def measures_spans(self) -> bool:
        """True if its memory can be measured over many steps at once: it predicts, and every stored
        token stays.
        """
        return self.predicts is not None and self.drops_tokens is None

    @property
    def layout(self) -> Layout | None:
        """The form of its tables; None: they have no regular form."""
        return None if self.laid_out is None else self.laid_out.layout()

    @property
    def block_size(self) -> int | None:
        """Tokens of a block of its tables; None: they have no blocks."""
        return None if self.layout is None else self.layout.block_size

    def lookup(self, seq: Sequence) -> CacheHit:
        """The tokens of `seq` that other sequences have stored."""
        return NO_HIT if self.publishes is None else self.publishes.lookup(seq)

    def admit(self, seqs: list[Sequence], num_tokens: int, hit: CacheHit) -> Answers:
        """Admit with what `lookup` found, which a policy that does not publish never sees."""
        if self.publishes is None:
            return self.policy.admit(seqs, num_tokens)
        return self.publishes.admit(seqs, num_tokens, hit)

    def guaranteed_steps(self, batch: Batch) -> int:
        """Steps that succeed in any case; 0 if the policy does not predict."""
        return 0 if self.predicts is None else self.predicts.guaranteed_steps(batch)

    def footprint(self, seq: Sequence) -> Footprint | None:
        """The slots of a sequence by its tokens; None: its table must be read."""
        return None if self.predicts is None else self.predicts.footprint(seq)

    def advance(self, batch: Batch, num_steps: int) -> Answer:
        """So many of the guaranteed steps were taken."""
        if self.layered is None:
            return self.policy.extend(batch, num_steps)
        return self.layered.advance(batch, num_steps)

    def fork(self, parent: Sequence, child: Sequence) -> Ops:
        """`child` continues with the parent's stored tokens, shared or copied."""
        child.change_table()
        return self.give_tokens(parent, child)

    def _copy_tokens(self, parent: Sequence, child: Sequence) -> Ops:
        """The copies by which `child` has the parent's stored tokens, if the policy does not
        fork.
        """
        if self.copies_prompts is not None:
            return self.copies_prompts.copy_prompt(parent, child)
        tables = self.policy.table(parent), self.policy.table(child)
        return Ops(copies_between(*tables, self.num_stored(parent.prompt_len, parent.num_stored)))

    def move(self, seqs: list[Sequence], tier: str) -> Answer:
        """Take a whole group to a tier; asked of a policy that swaps."""
        assert self.swaps is not None, "a group moves only if the policy swaps"
        answer = self.swaps.move(seqs, tier)
        if not isinstance(answer, Refusal):
            for seq in seqs:
                seq.change_table()
        return answer

    def num_stored(self, prompt_len: int, num_tokens: int) -> int:
        """Tokens in the pool of a sequence with such a prompt that has num_tokens of them."""
        if self.drops_tokens is None:
            return num_tokens
        return self.drops_tokens.num_stored(prompt_len, num_tokens)

    def group_tables(self, seq: Sequence) -> list[GroupTable]:
        """The table of a sequence by KV group; of one group if the policy knows no others."""
        if self.layered is not None:
            return self.layered.group_tables(seq)
        dropped = seq.num_slots - self.num_stored(seq.prompt_len, seq.num_slots)
        return [
            GroupTable(group=0, extents=self.policy.table(seq), first=dropped, slots_per_token=1)
        ]

    def repeated_reads(self, batch: Batch, others: Collection[Sequence] = ()) -> int:
        """Tokens that these sequences read more than once in their next step."""
        if self.counts_shared_reads is None:
            return self.reads_by_tables(batch, others)
        return self.counts_shared_reads.repeated_reads(batch, others)

    def reads_by_tables(self, batch: Batch, others: Collection[Sequence] = ()) -> int:
        """`repeated_reads` by walking all tables."""
        seqs = [*batch, *others]
        return read_again([(seq.num_slots, self._full_tables(seq)) for seq in seqs])

    def _full_tables(self, seq: Sequence) -> list[GroupTable]:
        """The tables of the layers that read every token: no window, no state."""
        tables, layout = self.group_tables(seq), self.layout
        if not isinstance(layout, PageLayout):
            return tables
        columns = zip(layout.columns, tables, strict=True)
        return [table for column, table in columns if column.reads_all]

    def non_sequence_slots(self) -> NonSequenceSlots:
        """Slots of no table that are not free, as far as the policy lists them."""
        lists = self.lists_other_slots
        return NonSequenceSlots() if lists is None else lists.non_sequence_slots()

    def tier_slots(self) -> Mapping[str, NonSequenceSlots]:
        """Prefixes that lower tiers store."""
        return {} if self.stores_below is None else self.stores_below.tier_slots()

    def close_session(self, session: int) -> None:
        """Close a session at a policy that follows sessions."""
        if self.follows_sessions is not None:
            self.follows_sessions.close_session(session)

    def pool_in_slots(self, pool: PoolSpec) -> PoolSpec:
        """The pool in the policy's own slots, which are units if it keeps KV groups apart."""
        layout = self.layout
        return layout.pool if isinstance(layout, PageLayout) else pool


# By attribute of Capabilities
PROTOCOLS: Mapping[str, type] = {
    name: get_args(hint)[0] for name, hint in get_type_hints(Capabilities).items()
}
# By which a policy has a capability: those of the protocol that not every policy has
METHODS: Mapping[type, tuple[str, ...]] = {
    protocol: tuple(
        name
        for name, value in vars(protocol).items()
        if callable(value) and not name.startswith("_") and not hasattr(MemoryPolicy, name)
    )
    for protocol in PROTOCOLS.values()
}


def capabilities_of(policy: MemoryPolicy) -> Capabilities:
    """The capabilities of a policy. InputError if it has a part of a capability only, or one
    that needs another.
    """
    missing = {
        protocol: [name for name in methods if not callable(getattr(policy, name, None))]
        for protocol, methods in METHODS.items()
    }
    for protocol, methods in METHODS.items():
        there = [name for name in methods if name not in missing[protocol]]
        if missing[protocol] and there:
            raise _incomplete(policy, there[0], missing[protocol][0], protocol)
        for needed in () if missing[protocol] else NEEDS.get(protocol, ()):
            if missing[needed]:
                raise _incomplete(policy, methods[0], METHODS[needed][0], protocol)
    return Capabilities(policy, [protocol for protocol in METHODS if not missing[protocol]])


def _incomplete(policy: MemoryPolicy, there: str, missing: str, protocol: type) -> InputError:
    """The refusal of a policy that has the one method of a capability without the other."""
    return InputError(
        key="policy",
        value=type(policy).__name__,
        problem=f"has {there}() without {missing}()",
        remedy=f"define both, see {protocol.__name__} in testbed/memory/protocols.py",
    )
