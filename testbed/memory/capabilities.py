"""What a memory policy can do: the one place where that is found out."""

from collections.abc import Collection, Mapping
from typing import Any

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
    copies_between,
)
from testbed.memory import protocols
from testbed.memory.layouts import Layout, PageLayout
from testbed.memory.policy import MemoryPolicy
from testbed.memory.pools import PoolSpec
from testbed.memory.protocols import (
    Advances,
    CopiesPrompts,
    CountsSharedReads,
    DropsTokens,
    Estimates,
    FollowsSessions,
    ForeseesPrompts,
    Forks,
    LaidOut,
    Layered,
    Leases,
    ListsOtherSlots,
    Loads,
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

# The methods of each capability, and the capabilities without which it makes no sense.
METHODS: Mapping[type, tuple[str, ...]] = {
    protocols.Predicts: ("guaranteed_steps", "footprint"),
    protocols.Advances: ("advance",),
    protocols.Forks: ("fork",),
    protocols.CopiesPrompts: ("copy_prompt",),
    protocols.RegistersPrefixes: ("register_prefix",),
    protocols.Publishes: ("lookup", "publish"),
    protocols.Estimates: ("fits",),
    protocols.PinsHits: ("match", "pin", "unpin", "make_free"),
    protocols.Truncates: ("truncate",),
    protocols.Swaps: ("move", "swapped_table"),
    protocols.Leases: ("end_lease",),
    protocols.Transfers: ("background", "landed"),
    protocols.Loads: ("load",),
    protocols.Offloads: ("load_into_slots", "has_landed", "begin_stores"),
    protocols.DropsTokens: ("num_stored",),
    protocols.Layered: ("group_tables",),
    protocols.ServesInTurn: ("reserve_in_turn",),
    protocols.CountsSharedReads: ("repeated_reads",),
    protocols.LaidOut: ("layout",),
    protocols.ListsOtherSlots: ("non_sequence_slots",),
    protocols.ReportsCache: ("report_cache", "prompt_codes"),
    protocols.StoresBelow: ("tier_slots",),
    protocols.SharesTiers: ("lower_tiers", "share_tiers", "transfers_of", "leave_tiers"),
    protocols.FollowsSessions: ("close_session",),
    protocols.ForeseesPrompts: ("foresee_prompts",),
    protocols.ReadsColumns: ("columns_read",),
}
NEEDS: Mapping[type, tuple[type, ...]] = {
    protocols.RegistersPrefixes: (protocols.Forks, protocols.ListsOtherSlots),
    protocols.Truncates: (protocols.Estimates,),
    protocols.PinsHits: (protocols.Publishes,),
    protocols.Advances: (protocols.Predicts,),
    protocols.Loads: (protocols.Publishes, protocols.Transfers),
    protocols.Offloads: (protocols.Publishes, protocols.Transfers, protocols.Estimates),
    protocols.Layered: (protocols.LaidOut, protocols.ServesInTurn),
    protocols.SharesTiers: (protocols.Transfers, protocols.StoresBelow),
}


class Capabilities:
    """A policy, and for each capability the policy itself or None.

    `policy` answers the required calls; whoever needs more asks here for the capability. The
    methods answer for every policy, by the capability or by what goes without it.
    """

    __slots__ = (
        "advances",
        "copies_prompts",
        "counts_shared_reads",
        "drops_tokens",
        "estimates",
        "follows_sessions",
        "foresees_prompts",
        "forks",
        "laid_out",
        "layered",
        "leases",
        "lists_other_slots",
        "loads",
        "offloads",
        "pins_hits",
        "policy",
        "predicts",
        "publishes",
        "reads_columns",
        "registers_prefixes",
        "reports_cache",
        "serves_in_turn",
        "shares_tiers",
        "stores_below",
        "swaps",
        "transfers",
        "truncates",
    )

    def __init__(self, policy: MemoryPolicy) -> None:
        self.policy = policy
        self.predicts: Predicts | None = _having(policy, protocols.Predicts)
        self.advances: Advances | None = _having(policy, protocols.Advances)
        self.forks: Forks | None = _having(policy, protocols.Forks)
        self.copies_prompts: CopiesPrompts | None = _having(policy, protocols.CopiesPrompts)
        self.registers_prefixes: RegistersPrefixes | None = _having(
            policy, protocols.RegistersPrefixes
        )
        self.publishes: Publishes | None = _having(policy, protocols.Publishes)
        self.estimates: Estimates | None = _having(policy, protocols.Estimates)
        self.pins_hits: PinsHits | None = _having(policy, protocols.PinsHits)
        self.truncates: Truncates | None = _having(policy, protocols.Truncates)
        self.swaps: Swaps | None = _having(policy, protocols.Swaps)
        self.leases: Leases | None = _having(policy, protocols.Leases)
        self.transfers: Transfers | None = _having(policy, protocols.Transfers)
        self.loads: Loads | None = _having(policy, protocols.Loads)
        self.offloads: Offloads | None = _having(policy, protocols.Offloads)
        self.drops_tokens: DropsTokens | None = _having(policy, protocols.DropsTokens)
        self.layered: Layered | None = _having(policy, protocols.Layered)
        self.counts_shared_reads: CountsSharedReads | None = _having(
            policy, protocols.CountsSharedReads
        )
        self.serves_in_turn: ServesInTurn | None = _having(policy, protocols.ServesInTurn)
        self.laid_out: LaidOut | None = _having(policy, protocols.LaidOut)
        self.lists_other_slots: ListsOtherSlots | None = _having(policy, protocols.ListsOtherSlots)
        self.reports_cache: ReportsCache | None = _having(policy, protocols.ReportsCache)
        self.stores_below: StoresBelow | None = _having(policy, protocols.StoresBelow)
        self.shares_tiers: SharesTiers | None = _having(policy, protocols.SharesTiers)
        self.follows_sessions: FollowsSessions | None = _having(policy, protocols.FollowsSessions)
        self.foresees_prompts: ForeseesPrompts | None = _having(policy, protocols.ForeseesPrompts)
        self.reads_columns: ReadsColumns | None = _having(policy, protocols.ReadsColumns)

    @property
    def name(self) -> str:
        """The policy's class, for messages."""
        return type(self.policy).__name__

    @property
    def measures_spans(self) -> bool:
        """Whether its memory can be measured over many steps at once: it predicts, and every stored
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
        """What others have stored of the tokens of `seq`."""
        return NO_HIT if self.publishes is None else self.publishes.lookup(seq)

    def admit(self, seqs: list[Sequence], num_tokens: int, hit: CacheHit) -> Answers:
        """Admit with what `lookup` found, which a policy that does not publish never sees."""
        if self.publishes is None:
            return self.policy.admit(seqs, num_tokens)
        return self.publishes.admit(seqs, num_tokens, hit)

    def guaranteed_steps(self, batch: Batch) -> int:
        """Steps that succeed in any case; 0 where the policy does not predict."""
        return 0 if self.predicts is None else self.predicts.guaranteed_steps(batch)

    def footprint(self, seq: Sequence) -> Footprint | None:
        """The slots of a sequence by its tokens; None: its table must be read."""
        return None if self.predicts is None else self.predicts.footprint(seq)

    def advance(self, batch: Batch, num_steps: int) -> Answer:
        """So many of the guaranteed steps were taken."""
        if self.advances is None:
            return self.policy.extend(batch, num_steps)
        return self.advances.advance(batch, num_steps)

    def fork(self, parent: Sequence, child: Sequence) -> Ops:
        """`child` continues with the parent's stored tokens, shared or copied."""
        if self.forks is not None:
            return self.forks.fork(parent, child)
        if self.copies_prompts is not None:
            return self.copies_prompts.copy_prompt(parent, child)
        tables = self.policy.table(parent), self.policy.table(child)
        return Ops(copies_between(*tables, self.num_stored(parent.num_stored)))

    def num_stored(self, num_tokens: int) -> int:
        """Tokens in the pool of a sequence that has num_tokens of them."""
        return num_tokens if self.drops_tokens is None else self.drops_tokens.num_stored(num_tokens)

    def group_tables(self, seq: Sequence) -> list[GroupTable]:
        """The table of a sequence by KV group; of one group where the policy knows no others."""
        if self.layered is not None:
            return self.layered.group_tables(seq)
        dropped = seq.num_slots - self.num_stored(seq.num_slots)
        return [
            GroupTable(group=0, extents=self.policy.table(seq), first=dropped, slots_per_token=1)
        ]

    def repeated_reads(self, batch: Batch, others: Collection[Sequence] = ()) -> int:
        """Tokens that these sequences read more than once in their next step."""
        if self.counts_shared_reads is None:
            return self.reads_by_tables(batch, others)
        return self.counts_shared_reads.repeated_reads(batch, others)

    def reads_by_tables(self, batch: Batch, others: Collection[Sequence] = ()) -> int:
        """The same, by walking all tables."""
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
        """What lower tiers store of prefixes."""
        return {} if self.stores_below is None else self.stores_below.tier_slots()

    def close_session(self, session: int) -> None:
        """Tell a policy that follows sessions that one is over."""
        if self.follows_sessions is not None:
            self.follows_sessions.close_session(session)

    def pool_in_slots(self, pool: PoolSpec) -> PoolSpec:
        """The pool in the policy's own slots, which are units where it keeps KV groups apart."""
        layout = self.layout
        return layout.pool if isinstance(layout, PageLayout) else pool


def capabilities_of(policy: MemoryPolicy) -> Capabilities:
    """What a policy can do. InputError where it has a part of a capability only, or one that needs
    another.
    """
    name = type(policy).__name__
    for protocol, methods in METHODS.items():
        missing = [method for method in methods if _lacks(policy, method)]
        if missing and len(missing) < len(methods):
            there = next(method for method in methods if method not in missing)
            raise InputError(
                f"policy={name}: has {there}() without {missing[0]}() (define both, see "
                f"{protocol.__name__} in testbed/memory/protocols.py)"
            )
        for needed in () if missing else NEEDS.get(protocol, ()):
            if _having(policy, needed) is None:
                raise InputError(
                    f"policy={name}: has {methods[0]}() without {METHODS[needed][0]}() (define "
                    f"both, see {protocol.__name__} in testbed/memory/protocols.py)"
                )
    return Capabilities(policy)


def _having(policy: MemoryPolicy, protocol: type) -> Any:
    """As isinstance(policy, protocol), which takes twelve times as long in Python 3.11."""
    return None if any(_lacks(policy, method) for method in METHODS[protocol]) else policy


def _lacks(policy: MemoryPolicy, method: str) -> bool:
    return not callable(getattr(policy, method, None))
