"""Capabilities of a memory policy besides the required methods: a protocol of one or two methods
for each capability.

A policy has a capability by defining its methods; nothing else declares it. They are found once, by
`capabilities_of`, which also says what needs what.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from testbed.core.sequence import Batch
from testbed.core.sequence import Sequence as Seq
from testbed.core.slots import (
    Answer,
    Answers,
    CacheHit,
    Extent,
    Footprint,
    Grant,
    GroupTable,
    Keep,
    Lease,
    NonSequenceSlots,
    Ops,
)
from testbed.memory.layouts import Layout

if TYPE_CHECKING:  # most policies have neither
    from testbed.memory.prefix_cache.prefix_index import OnCacheEvent
    from testbed.memory.tiers.lower_tier import LowerTier


@runtime_checkable
class Predicts(Protocol):
    """Its next steps are certain, and its sequences' slots are a function of their tokens: many
    steps can be taken, and their memory measured, at once.
    """

    def guaranteed_steps(self, batch: Batch) -> int:
        """Promise: extend(batch, k) succeeds without ops for every k up to the answer; 0: step one
        by one.

        It takes free slots or cached ones, in the policy's order. The answer comes from these and
        max_len alone. The grant of such an `extend` has its slots by step, in `growth`.

        Args:
            batch: the sequences that decode.
        """

    def footprint(self, seq: Seq) -> Footprint:
        """The slots that `seq` holds as a function of the tokens that it stores.

        Args:
            seq: any sequence of the run.
        """


@runtime_checkable
class Forks(Protocol):
    """Sequences share slots: those of a request are admitted as one, and forked once its prompt is
    computed.

    A policy that does not fork gives every sequence slots of its own, and the prompt is copied.
    """

    def fork(self, parent: Seq, child: Seq) -> Ops:
        """The child continues with the parent's stored tokens; the copies that this takes.

        A new child is admitted by this; one with slots loses them (a beam candidate that did not
        survive, Fig. 9).

        Args:
            parent: one that has slots.
            child: another of the same request.
        """


@runtime_checkable
class CopiesPrompts(Protocol):
    """The policy chooses the copies that give a sequence in slots of its own the parent's tokens;
    without this capability, all tokens of the parent are copied.
    """

    def copy_prompt(self, parent: Seq, child: Seq) -> Ops:
        """The copies by which the child gets the parent's stored tokens.

        Args:
            parent: one whose prompt is computed.
            child: another of the same request, which has slots of its own.
        """


@runtime_checkable
class RegistersPrefixes(Protocol):
    """A provider's prefix stays in the pool, for all sequences that begin with it (section 4.4)."""

    def register_prefix(self, num_tokens: int) -> None:
        """Pin a prefix in the pool; InputError if it has no room.

        Args:
            num_tokens: its tokens.
        """


@runtime_checkable
class Publishes(Protocol):
    """Sequences find what others have stored: a prompt is looked up once, and admitted with what
    was found.
    """

    def lookup(self, seq: Seq) -> CacheHit:
        """The stored tokens of a sequence; changes nothing.

        Args:
            seq: one that waits.
        """

    def publish(self, seq: Seq, num_tokens: int) -> None:
        """Once this iteration has run, tokens of a sequence are stored: others may find them.

        Called while planning, right after a chunk is scheduled and before the next admission, and
        again after a move to the device. A sequence is not preempted in the plan that publishes it.

        Args:
            seq: whose tokens.
            num_tokens: how many, from the first on.
        """

    def admit(self, seqs: list[Seq], num_tokens: int, hit: CacheHit | None = None) -> Answers:
        """As MemoryPolicy.admit, with what was found.

        Args:
            seqs: as there.
            num_tokens: as there.
            hit: what `lookup` answered; None: the policy looks the prompt up itself.
        """


@runtime_checkable
class Estimates(Protocol):
    """It says beforehand whether an admission would be granted."""

    def fits(self, seq: Seq, num_tokens: int, hit: CacheHit) -> bool:
        """True if a sequence would be admitted now; changes nothing.

        A scheduler that admits with fewer tokens than must fit calls this first. A sequence that
        `truncate` has left slots keeps them: the question is then whether it would get what it
        lacks.

        Args:
            seq: one that waits.
            num_tokens: for which slots would be wanted.
            hit: what `lookup` answered.
        """


@runtime_checkable
class PinsHits(Protocol):
    """It keeps what a waiting sequence would find, so that a scheduler can decide about several
    admissions before any of them takes slots, as SGLang does.
    """

    def match(self, seq: Seq, num_tokens: int) -> CacheHit:
        """As `lookup` of the first num_tokens tokens, but it counts as a use of what is found.

        Args:
            seq: one that waits.
            num_tokens: those that may be found.
        """

    def refresh(self, seq: Seq, num_tokens: int) -> None:
        """The sequence still waits; an eviction by recency counts that as a use of what it finds.

        Args:
            seq: one that waits.
            num_tokens: those that may be found.
        """

    def depth_first(self, hits: Sequence[CacheHit]) -> list[int]:
        """The places of hits in a walk of what is stored that goes first where most of them end.

        Args:
            hits: what `match` answered.
        """

    def pin(self, hit: CacheHit) -> None:
        """Found blocks are not evicted until `unpin`.

        Args:
            hit: what `match` answered.
        """

    def unpin(self, hit: CacheHit) -> None:
        """Undo one `pin`.

        Args:
            hit: that was pinned.
        """

    def make_free(self, num_slots: int) -> None:
        """Evict until num_slots slots are free, or nothing more can be evicted.

        Args:
            num_slots: how many.
        """


@runtime_checkable
class LoadsHits(Protocol):
    """A tier below has a part of what waiting sequences find, which is loaded when the scheduler
    decides to admit one; the iteration that computes it waits for that, as in SGLang.
    """

    def load_hit(self, seq: Seq, hit: CacheHit) -> CacheHit:
        """Load what is below of a hit, as far as that is done; the hit to admit the sequence with,
        which is pinned in the place of the first one. The next grant has the moves.

        Args:
            seq: one that waits.
            hit: what `match` answered, pinned.
        """

    def end_load(self, seq: Seq) -> None:
        """The iteration that a sequence was admitted to has ended. It may have loaded nothing.

        Args:
            seq: that it has computed, or that was preempted since.
        """


@runtime_checkable
class Truncates(Protocol):
    """It takes back the last slots of a sequence: rejected drafts, or the tail of a preempted
    one.
    """

    def truncate(self, seq: Seq, num_tokens: int) -> Grant:
        """A sequence gives back the slots of its last tokens; it keeps at least one.

        Slots that become free end refusals. An `extend` brings slots back, in which the tokens are
        computed again.

        Args:
            seq: one that is in no batch.
            num_tokens: how many, up to the last.
        """


@runtime_checkable
class Swaps(Protocol):
    """Sequences move between the device and a tier below it."""

    def move(self, seqs: list[Seq], tier: str) -> Answer:
        """Take a whole group to a tier; shared blocks move once.

        Args:
            seqs: all sequences of a request that have slots.
            tier: its name.
        """

    def swapped_table(self, seq: Seq) -> Mapping[str, list[Extent]]:
        """The slots of a sequence's tokens below the device, in order, by tier; those that have
        stayed on the device first.

        Args:
            seq: one that was moved there.
        """


@runtime_checkable
class Leases(Protocol):
    """Slots outlive their sequence: `release` takes a second argument, which says what stays."""

    def release(self, seq: Seq, keep: Keep | Lease = Keep.CACHED) -> None:
        """As MemoryPolicy.release, but something stays. The counts of a sequence that leaves a
        lease must not change until that ends.

        Args:
            seq: one that has slots.
            keep: what stays.
        """

    def end_lease(self, lease: Lease) -> None:
        """The slots of all sequences that were released with this lease are given back, as by
        release(seq).

        Args:
            lease: with which sequences were released.
        """


@runtime_checkable
class Transfers(Protocol):
    """Blocks go to lower tiers, and what these have of a prompt is brought up before its admission,
    by transfers that no iteration waits for: the engine says when they have landed.
    """

    def background(self) -> Ops:
        """Transfers to lower tiers that begin now; called once at the start of every plan."""

    def landed(self, move_id: int) -> None:
        """A transfer of ops.background has ended: its slots are no longer pinned, what it brought
        may be found.

        Args:
            move_id: the number of the transfer.
        """

    def load(self, seq: Seq, num_tokens: int, hit: CacheHit) -> Answer:
        """Begin to bring up what was found below the device.

        The transfers are the grant's ops.background; none if there is nothing to load. LATER:
        the pool has no slots for them now. While they are on their way, `admit` answers LOADING.

        Args:
            seq: one that waits.
            num_tokens: for which slots will be wanted.
            hit: what `lookup` answered.
        """


@runtime_checkable
class Offloads(Protocol):
    """A waiting sequence gets slots for what a tier below has of its prompt, and holds them while
    that is loaded; what a plan computes is stored at its end.
    """

    def load_into_slots(
        self,
        seq: Seq,
        num_tokens: int,
        hit: CacheHit,
        must_fit: int,
        in_prefill: Iterable[tuple[Seq, int]],
    ) -> Answer:
        """Begin to load what the tier has of a waiting sequence.

        A grant with num_cached above 0: it has slots for num_tokens tokens now, and all of them are
        stored once `has_landed`. A grant of 0: there is nothing to load. LOADING: what it would
        find is being written, or loaded for another sequence. LATER: the pool has no slots for it.

        Args:
            seq: one that waits.
            num_tokens: all that it has.
            hit: what `lookup` answered.
            must_fit: tokens of it for which the pool must have slots now.
            in_prefill: sequences with slots, and the tokens for which they need some; these are
                left to them.
        """

    def has_landed(self, seq: Seq) -> bool:
        """True if nothing of a sequence is on its way any more.

        Args:
            seq: one that `load_into_slots` gave slots.
        """

    def begin_stores(
        self,
        scheduled: Sequence[tuple[Seq, int]],
        preempted: Sequence[Seq],
        ended: Sequence[tuple[Seq, int]],
    ) -> Ops:
        """The stores of a plan, which is complete.

        Args:
            scheduled: sequences that it computes, in the order in which they run, and their stored
                tokens when it has run.
            preempted: those that it has preempted.
            ended: those that have ended since the plan before, and their stored tokens.
        """


@runtime_checkable
class DropsTokens(Protocol):
    """It does not keep every token of a sequence: in a window that moves on, after a prompt that
    is computed, or in fewer slots as groups of tokens are packed.

    The stored tokens may become fewer while a sequence grows. An `extend` that gives slots back
    says `ends_refusals`; `max_seq_len` counts the largest need on the way.
    """

    def num_stored(self, prompt_len: int, num_tokens: int) -> int:
        """Slots with K and V of a sequence that are in the pool; they are the first ones of its
        table, and what they contain is in the order of the tokens.

        Args:
            prompt_len: tokens of its prompt.
            num_tokens: that the sequence has.
        """


@runtime_checkable
class Layered(Protocol):
    """It keeps the KV groups of a model apart, and gives back what no later token of a group
    reads.

    Its footprint is an upper bound, and a chunk keeps what its first token reads.
    """

    def group_tables(self, seq: Seq) -> list[GroupTable]:
        """The table by KV group. `table` contains the extents of all of them.

        Args:
            seq: one that has slots.
        """

    def advance(self, batch: Batch, num_steps: int) -> Answer:
        """Steps that `guaranteed_steps` promised were taken, in which windows may have returned
        slots; the answer is a grant without ops.

        Args:
            batch: the sequences that decode.
            num_steps: how many steps were taken.
        """


@runtime_checkable
class ServesInTurn(Protocol):
    """Blocks are reserved one sequence at a time in batch order; blocks freed by a later sequence
    cannot serve an earlier one, as in vLLM.
    """

    def reserve_in_turn(self, wanted: Sequence[tuple[Seq, int]]) -> int:
        """Set blocks aside for the next tokens of sequences one after the other, as far as there
        are enough; how many have theirs.

        Each gives back first what its next tokens do not read, which those behind it may take. The
        one that lacks blocks gives back too, and keeps what it has. The `extend` that follows for
        those that were served is granted; asked again, they need nothing.

        Args:
            wanted: sequences that have slots, and how many more each gets.
        """


@runtime_checkable
class CutsChunks(Protocol):
    """It keeps states at the ends of chunks, and chooses with the scheduler if these are."""

    def cut_chunk(
        self, seq: Seq, start: int, new: int, num_tokens: int, most: int, hit: CacheHit
    ) -> int:
        """The tokens that the next chunk of a sequence has, at most `new`; 0: it waits.

        Args:
            seq: one that is admitted next, or in prefill.
            start: tokens before the chunk.
            new: tokens that the budget allows.
            num_tokens: all that it has to compute when it is admitted.
            most: tokens of any chunk.
            hit: what `lookup` found, of one that is admitted next.
        """

    def has_chunks(self) -> bool:
        """True if it shortens any chunk. A later chunk of a prompt may be longer then than one
        before it, so that sequences are served one by one.
        """

    def begin_plan(self) -> bool:
        """The next plan is made; whether a request that was refused before may be admitted then."""


@runtime_checkable
class CountsSharedReads(Protocol):
    """It knows how often decodes read a shared token, without walking the tables."""

    def repeated_reads(self, batch: Batch, others: Collection[Seq] = ()) -> int:
        """Tokens that sequences read more than once in their next step in each layer of full
        attention; changes nothing.

        All of them have the slot of that step. A token that n of them share counts n - 1 times. It
        is asked only while `usage` reports saved slots.

        Args:
            batch: those that decode.
            others: more of them, which are in no batch.
        """


@runtime_checkable
class LaidOut(Protocol):
    """Its tables have a regular form, which GPU kernels and pictures need to know."""

    def layout(self) -> Layout:
        """The form of its tables, which never changes."""


@runtime_checkable
class ListsOtherSlots(Protocol):
    """It can say where the slots lie that are not free though no table contains them."""

    def non_sequence_slots(self) -> NonSequenceSlots:
        """The places of these slots; for pictures and checks."""


@runtime_checkable
class ReportsCache(Protocol):
    """It says at once what its prefix cache on the device has, so that routers know it."""

    def report_cache(self, on_event: "OnCacheEvent") -> int:
        """Say from now on what can be found. Within `guaranteed_steps` nothing happens. Returns the
        tokens of a block.

        Args:
            on_event: called as on_event(codes, is_stored) when blocks of content can be found, and
                when they cannot any more; codes: as in `prompt_codes`.
        """

    def prompt_codes(
        self, prompt_ids: Sequence[int], tokens_per_id: int, prompt_len: int
    ) -> Iterable[int]:
        """The code of each block that an admission of such a prompt could find, in order; changes
        nothing. It is read once, up to the first that is not cached.

        Args:
            prompt_ids: the prompt's content, one id for each tokens_per_id tokens.
            tokens_per_id: tokens that an id names.
            prompt_len: tokens of the prompt.
        """


@runtime_checkable
class StoresBelow(Protocol):
    """It stores prefixes in tiers below the device (server.tiers)."""

    def tier_slots(self) -> Mapping[str, NonSequenceSlots]:
        """Prefixes that the tiers below store, by their names: `cached`, and `in_transit` while it
        is written.
        """


@runtime_checkable
class SharesTiers(Protocol):
    """Several engines may use one tier: each has a policy and a device of its own, and all of them
    the same memory below.
    """

    def lower_tiers(self) -> "Mapping[str, LowerTier]":
        """The tiers that it uses, by name."""

    def share_tiers(self, tiers: "Mapping[str, LowerTier]") -> None:
        """Use tiers that others use too, in place of its own of the same names. Called before the
        first request; InputError if it cannot.

        Args:
            tiers: by name.
        """

    def transfers_of(self, tier: str) -> tuple[list[int], list[int]]:
        """The blocks of the tier that its transfers read, and those that they write, now.

        Args:
            tier: its name.
        """

    def has_stores(self) -> bool:
        """True if its next plan may begin to store something below."""

    def leave_tiers(self) -> None:
        """None of its transfers will land: what they read is unpinned, and what they were to write
        is free.
        """


@runtime_checkable
class FollowsSessions(Protocol):
    """Its cache depends on the sessions of requests."""

    def close_session(self, session: int) -> None:
        """No request of the session will come: its last one was answered.

        Args:
            session: its number.
        """


@runtime_checkable
class ForeseesPrompts(Protocol):
    """An oracle of prompts, to compare with: no real server knows them."""

    def foresee_prompts(self, prompts: Iterable[tuple[Sequence[int], int, int]]) -> None:
        """Called before the first request. Nothing need be read.

        Args:
            prompts: the content, tokens per id and length of every prompt, in order of arrival.
        """


@runtime_checkable
class ReadsColumns(Protocol):
    """It decides by what a trace need not say of its requests. On a trace without it, it would
    decide as another one does. A scheduler or an eviction order may have this too.
    """

    def columns_read(self) -> tuple[str, ...]:
        """The columns that it reads, of `session`, `priority` and `max_new_tokens`."""


@runtime_checkable
class ForeseesChains(Protocol):
    """An eviction order (testbed.memory.prefix_cache.eviction.order) that knows the prompts to
    come.
    """

    def foresee(self, prompts: Iterable[Sequence[int]]) -> None:
        """Called before the first request.

        Args:
            prompts: the hash chain of every prompt, in order of look-up.
        """

    def requested(self, chain: Sequence[int]) -> None:
        """The next prompt of the future is looked up now.

        Args:
            chain: that of the prompt.
        """


@runtime_checkable
class FollowsMisses(Protocol):
    """An eviction order that chooses a victim by what takes its place."""

    def missed(self, codes: Iterable[int]) -> None:
        """These contents are not in the cache and come into it; victims make room for them one by
        one, and then for what no prompt can name.

        Args:
            codes: their chained hashes, in the prompt's order.
        """
