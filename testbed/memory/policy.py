"""The plug-in API for memory policies, and the pools that a policy manages."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from testbed.core.errors import InputError
from testbed.core.errors import UnsupportedError as UnsupportedError
from testbed.core.layers import KvGroup
from testbed.core.request import Foresight
from testbed.core.sequence import Batch, Sequence
from testbed.core.slots import (
    GRANTED,
    HOST,
    NO_OPS,
    Answer,
    Answers,
    Extent,
    Footprint,
    Grant,
    GroupTable,
    NonSequenceSlots,
    Ops,
    Usage,
    copies_between,
)
from testbed.memory.shared_reads import read_again

UNBOUNDED_LEN = 1 << 62


class Tier(NamedTuple):
    """A pool below the device: its name, its slots, and bytes/s each way: of `host` to one GPU,
    else to all together.

    write_bandwidth 0.0: the same as `bandwidth`, which is that of reading. latency_s: seconds
    before the first byte.
    """

    name: str
    num_slots: int
    bandwidth: float = 0.0
    write_bandwidth: float = 0.0
    latency_s: float = 0.0


def host(num_slots: int, bandwidth: float = 0.0) -> tuple[Tier, ...]:
    """The one tier that the built-in policies know: pinned host memory (section 4.5)."""
    return (Tier(HOST, num_slots, bandwidth),)


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """The pools that a policy manages, in slots, and the longest sequence in tokens.

    num_slots is the device's, tiers lists the pools below it. A slot is one token's K and V:
    layer_bytes bytes in each of num_layers layers, over num_gpus GPUs together. groups: the model's
    layers by the form of their cache, with the bytes over all GPUs.
    """

    num_slots: int
    max_len: int
    tiers: tuple[Tier, ...] = ()
    layer_bytes: int = 1
    num_layers: int = 1
    num_gpus: int = 1
    groups: tuple[KvGroup, ...] = ()

    def __post_init__(self) -> None:
        for name, number in (("num_slots", self.num_slots), ("max_len", self.max_len)):
            if type(number) is not int:
                raise InputError(
                    f"PoolSpec: {name} is {number!r}; it must be a whole number, of the type int "
                    f"itself"
                )

    def slots_of(self, tier: str) -> int:
        """Slots of a tier below the device; 0 where there is none of that name."""
        return next((t.num_slots for t in self.tiers if t.name == tier), 0)

    def __deepcopy__(self, memo: dict[int, object]) -> "PoolSpec":
        """The same value, which never changes; the compiler's frozen classes cannot be copied field
        by field.
        """
        return self


class MemoryPolicy(Foresight, ABC):
    """Decides whether sequences get slots, and which.

    A policy has no clock, queue, random numbers, GPU or logger; what must physically happen it
    returns as `Ops`. Refusals are values and change nothing. A call sees `num_slots` and
    `num_stored` of its sequences as they were before it; the caller moves them by the answer. The
    clauses that every policy must keep are in testbed.contract. The constructor takes a PoolSpec
    first, then the policy's own parameters by name.
    """

    shares: ClassVar[bool] = False
    caches_prefixes: ClassVar[bool] = False
    moves_tiers: ClassVar[bool] = False
    moves_in_background: ClassVar[bool] = False
    uses_tiers: ClassVar[bool] = (
        False  # stores tokens in the tiers of server.tiers; so does moves_in_background
    )
    drops_tokens: ClassVar[bool] = False
    single_sequence: ClassVar[bool] = False  # serves requests of one sequence alone
    returns_slots: ClassVar[bool] = False  # an extend may give slots back, which ends refusals
    shrinks: ClassVar[bool] = False
    # A scheduler calls `load` for so many of the first waiting requests, before they are admitted
    prefetches: int = 0

    @abstractmethod
    def admit(self, seqs: list[Sequence], num_tokens: int) -> Answers:
        """First slots for num_tokens tokens of each of these sequences, which have one prompt; all
        or none.

        A grant for each counts its leading tokens that are stored already. They may be more than
        num_tokens: the sequence then has that many slots. Where the policy shares, several
        sequences are a group that comes back after recompute: they differ behind their prompt and
        are computed in this order, so a grant may count what those before store.
        """

    @abstractmethod
    def extend(self, batch: Batch, num_tokens: int = 1) -> Answer:
        """num_tokens more slots for each member, all or none: a decode step, or a prompt's next
        chunk.
        """

    def advance(self, batch: Batch, num_steps: int) -> Answer:
        """num_steps steps of those that `guaranteed_steps` promised were taken; never refused,
        without ops.
        """
        return self.extend(batch, num_steps)

    @abstractmethod
    def release(self, seq: Sequence) -> None:
        """`seq` loses its slots: it is finished, or preempted by recompute."""

    @abstractmethod
    def table(self, seq: Sequence) -> list[Extent]:
        """Where the tokens of `seq` lie, in order, with the slots that it holds for more."""

    def group_tables(self, seq: Sequence) -> list[GroupTable]:
        """The table by KV group. `table` contains the extents of all of them."""
        dropped = seq.num_slots - self.num_stored(seq.num_slots)
        return [GroupTable(0, self.table(seq), dropped, 1)]

    def full_tables(self, seq: Sequence) -> list[GroupTable]:
        """Those of `group_tables` whose layers read every token: no window, no state."""
        return self.group_tables(seq)

    @abstractmethod
    def usage(self) -> Usage:
        """The device pool in slots."""

    def repeated_reads(self, batch: Batch, others: Collection[Sequence] = ()) -> int:
        """Tokens that the members of the batch and `others`, which are in none, read more than once
        in their next step in each layer of full attention; changes nothing.

        All of them have the slot of that step. A token that n of them share counts n - 1 times. It
        is asked only while `usage` reports saved slots, and walks all tables here.
        """
        seqs = [*batch, *others]
        return read_again([(seq.num_slots, self.full_tables(seq)) for seq in seqs])

    def find(self, seq: Sequence, num_tokens: int) -> int:
        """Leading tokens of `seq` that an admission for num_tokens tokens would find; changes
        nothing.
        """
        return 0

    def fits(self, seq: Sequence, num_tokens: int) -> bool:
        """Whether `seq` would be admitted for num_tokens tokens now; changes nothing. False also
        where it is unknown.

        A scheduler that admits with fewer tokens than must fit calls this first; after False it
        calls `admit`. A sequence that `shrink` has left slots keeps them: the question is then
        whether it would get what it lacks.
        """
        return False

    def shrink(self, seq: Sequence, num_tokens: int) -> Grant:
        """`seq`, which is in no batch, gives back the slots of its last num_tokens tokens; it keeps
        at least one.

        What becomes free ends refusals. An `extend` brings slots back, in which the tokens are
        computed again.
        """
        raise UnsupportedError(f"{type(self).__name__} takes no slots back but all of a sequence's")

    def publish(self, seq: Sequence, num_tokens: int) -> None:
        """Once this iteration has run, the first num_tokens tokens of `seq` are stored: others may
        find them.

        Called while planning, right after a chunk is scheduled and before the next admission, and
        again after a move to the device. A sequence is not preempted in the plan that publishes it.
        """

    def guaranteed_steps(self, batch: Batch) -> int:
        """Promise: extend(batch, k) succeeds without ops for every k up to the answer; 0: step one
        by one.

        It takes free slots or cached ones, in the policy's order. The answer comes from these and
        max_len alone.
        """
        return 0

    def footprint(self, seq: Sequence) -> Footprint | None:
        """The slots that `seq` holds as a function of the tokens that it stores; None: tables are
        walked each step.
        """
        return None

    def max_seq_len(self, prompt_len: int, num_seqs: int) -> int:
        """Tokens of the longest sequences of such a request that the pool, less registered
        prefixes, could hold.
        """
        return UNBOUNDED_LEN

    def num_stored(self, num_tokens: int) -> int:
        """Tokens in the pool of a sequence that has num_tokens of them; fewer only where the policy
        drops tokens.
        """
        return num_tokens

    def counters(self) -> Mapping[str, float]:
        """The policy's own counts since the start, by name; they reach the summary."""
        return {}

    def fork(self, parent: Sequence, child: Sequence) -> Ops:
        """`child` continues with the parent's stored tokens; the copies that this takes.

        Where the policy shares, a new child is admitted by this; one with slots loses them (a beam
        candidate that did not survive, Fig. 9). Where it does not, the child has its own slots and
        gets a copy.
        """
        return Ops(
            copies_between(
                self.table(parent), self.table(child), self.num_stored(parent.num_stored)
            )
        )

    def move(self, seqs: list[Sequence], tier: str) -> Answer:
        """Take a whole group to the tier of that name; shared blocks move once."""
        raise UnsupportedError(f"{type(self).__name__} does not move sequences between tiers")

    def load(self, seq: Sequence, num_tokens: int) -> Answer:
        """Begin to bring what lower tiers have of `seq` to the device, for an admission with
        num_tokens tokens.

        The transfers are the grant's ops.background; none where there is nothing to load. LATER:
        the pool has no slots for them now. While they are on their way, `admit` answers LOADING.
        """
        return GRANTED

    def background(self) -> Ops:
        """Transfers to lower tiers that begin now; called once at the start of every plan."""
        return NO_OPS

    def landed(self, move_id: int) -> None:
        """A transfer of ops.background has ended: its slots are no longer pinned, what it brought
        may be found.
        """
        raise UnsupportedError(f"{type(self).__name__} moves nothing in the background")

    def close_session(self, session: int) -> None:
        """No request of the session will come: its last one was answered."""

    def register_prefix(self, num_tokens: int) -> None:
        """Pin a provider's prefix of num_tokens tokens in the pool (section 4.4)."""
        raise UnsupportedError(f"{type(self).__name__} does not share prefixes")

    def non_sequence_slots(self) -> NonSequenceSlots:
        """Where the slots lie that are not free though no table need contain them; for pictures and
        checks.
        """
        return NonSequenceSlots()

    def tier_slots(self) -> Mapping[str, NonSequenceSlots]:
        """What the tiers below store of prefixes, by their names: `cached`, and `in_transit` while
        it is written.
        """
        return {}

    def check(self) -> None:
        """Raise AssertionError where an invariant of the policy's own state is broken."""
        used = self.usage()
        accounted = used.allocated + used.cached + used.in_transit + used.free
        assert accounted == used.total, f"slots were lost or counted twice: {used}"
