"""The plug-in API for memory policies, and what a policy is told about its pool."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from testbed.core.batch import Batch
from testbed.core.errors import UnsupportedError as UnsupportedError
from testbed.core.foresight import Foresight
from testbed.core.sequence import Sequence
from testbed.core.slots import (
    HOST,
    Answer,
    Answers,
    Extent,
    Footprint,
    Ops,
    Unowned,
    Usage,
    copies_between,
)

UNBOUNDED_LEN = 1 << 62


class Tier(NamedTuple):
    """A pool below the device: its name, its slots, and bytes/s each way between it and one GPU."""

    name: str
    num_slots: int
    bandwidth: float = 0.0


def host(num_slots: int, bandwidth: float = 0.0) -> tuple[Tier, ...]:
    """The one tier that the built-in policies know: pinned host memory (section 4.5)."""
    return (Tier(HOST, num_slots, bandwidth),)


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """The pools that a policy manages, in slots, and the longest sequence in tokens.

    num_slots is the device's, tiers lists the pools below it. A slot is one token's K and V: layer_bytes bytes in each
    of num_layers layers, over num_gpus GPUs together.
    """

    num_slots: int
    max_len: int
    tiers: tuple[Tier, ...] = ()
    layer_bytes: int = 1
    num_layers: int = 1
    num_gpus: int = 1

    def slots_of(self, tier: str) -> int:
        """Slots of a tier below the device; 0 where there is none of that name."""
        return next((t.num_slots for t in self.tiers if t.name == tier), 0)


class MemoryPolicy(Foresight, ABC):
    """Answers "may these sequences have room, and where?"

    A policy has no clock, queue, random numbers, GPU or logger; what must physically happen it returns as `Ops`.
    Refusals are values and change nothing. A call sees `room` and `stored` of its sequences as they were before it;
    the caller moves them by the answer. The clauses that every policy must keep are in testbed.contract.
    The constructor takes a PoolSpec first, then the policy's own parameters by name.
    """

    shares: ClassVar[bool] = False
    caches_prefixes: ClassVar[bool] = False
    moves_tiers: ClassVar[bool] = False
    drops_tokens: ClassVar[bool] = False

    @abstractmethod
    def admit(self, seqs: list[Sequence], num_tokens: int) -> Answers:
        """First room for num_tokens tokens of each of these sequences, which have one prompt; all or none.

        A grant for each says how many of its leading tokens are stored already, which may be more than num_tokens: the
        room then is that many. Where the policy shares, several sequences are a group that comes back after recompute:
        they differ behind their prompt and are computed in this order, so a grant may count what those before store.
        """

    @abstractmethod
    def extend(self, batch: Batch, num_tokens: int) -> Answer:
        """num_tokens more slots for each member, all or none; after a span: so many steps have happened."""

    @abstractmethod
    def release(self, seq: Sequence) -> None:
        """`seq` needs nothing any more: finished, aborted, or preempted by recompute."""

    @abstractmethod
    def table(self, seq: Sequence) -> list[Extent]:
        """Where the tokens of `seq` lie, in order, with the room that it holds for more."""

    @abstractmethod
    def usage(self) -> Usage:
        """The device pool in slots."""

    def computed(self, seq: Sequence, num_tokens: int) -> None:
        """Once this iteration has run, the first num_tokens tokens of `seq` are stored: others may find them.

        Said while planning, right after a chunk is placed and before the next admission, and again after a move to the
        device. What was declared is not preempted in the same plan.
        """

    def horizon(self, batch: Batch) -> int:
        """Promise: extend(batch, k) succeeds without ops for every k up to the answer; 0: step one by one.

        It takes free slots first, then cached ones. The answer comes from these and max_len alone.
        """
        return 0

    def footprint(self, seq: Sequence) -> Footprint | None:
        """The slots that `seq` holds as a function of the tokens that it stores; None: tables are walked each step."""
        return None

    def longest(self, prompt_len: int, num_seqs: int) -> int:
        """Tokens of the longest sequences of such a request that the pool, less registered prefixes, could hold."""
        return UNBOUNDED_LEN

    def stored(self, num_tokens: int) -> int:
        """Tokens in the pool of a sequence that has num_tokens of them; fewer only where the policy drops tokens."""
        return num_tokens

    def counters(self) -> Mapping[str, float]:
        """The policy's own counts since the start, by name; they reach the summary."""
        return {}

    def fork(self, parent: Sequence, child: Sequence) -> Ops:
        """`child` goes on with the parent's stored tokens; the copies that this takes.

        Where the policy shares, a new child is admitted by this; one that is resident gives up what it has (a beam
        candidate that did not survive, Fig. 9). Where it does not, the child has its own room and gets a copy.
        """
        return Ops(copies_between(self.table(parent), self.table(child), self.stored(parent.stored)))

    def move(self, seqs: list[Sequence], tier: str) -> Answer:
        """Take a whole group to the tier of that name; shared blocks move once."""
        raise UnsupportedError(f"{type(self).__name__} does not move sequences between tiers")

    def register_prefix(self, num_tokens: int) -> None:
        """Pin a provider's prefix of num_tokens tokens in the pool (section 4.4)."""
        raise UnsupportedError(f"{type(self).__name__} does not share prefixes")

    def unowned(self) -> Unowned:
        """Where the slots lie that are not free though no table need point at them; only pictures ask."""
        return Unowned()

    def check(self) -> None:
        """Raise AssertionError where an invariant of the policy's own state is broken."""
        used = self.usage()
        assert used.allocated + used.cached + used.free == used.total, f"slots were lost or counted twice: {used}"
