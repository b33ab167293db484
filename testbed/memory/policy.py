"""The plug-in API for memory policies: what every policy has.

All else is a capability, which a policy has or has not: see testbed.memory.protocols.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from testbed.core.errors import UnsupportedError as UnsupportedError
from testbed.core.sequence import Batch, Sequence
from testbed.core.slots import Answer, Answers, Extent, Usage
from testbed.memory.pools import PoolSpec as PoolSpec
from testbed.memory.pools import Tier as Tier
from testbed.memory.pools import host as host

UNBOUNDED_LEN = 1 << 62


class MemoryPolicy(ABC):
    """Decides whether sequences get slots, and which.

    A policy has no clock, queue, random numbers, GPU or logger; what must physically happen it
    returns as `Ops`. Refusals are values and change nothing. A call sees `num_slots` and
    `num_stored` of its sequences as they were before it; the caller moves them by the answer. The
    clauses that every policy must keep are in testbed.checks.contract. The constructor takes a
    PoolSpec first, then the policy's own parameters by name; an oracle has one named `lengths`, and
    gets the true output lengths in tokens by request id.
    """

    @abstractmethod
    def admit(self, seqs: list[Sequence], num_tokens: int) -> Answers:
        """First slots for num_tokens tokens of each of these sequences, which have one prompt; all
        or none.

        A grant for each counts its leading tokens that are stored already. They may be more than
        num_tokens: the sequence then has that many slots. If the policy forks, several sequences
        are a group that comes back after recompute: they differ behind their prompt and are
        computed in this order, so a grant may count what those before store.

        Args:
            seqs: the sequences of one request, at least one.
            num_tokens: tokens of each for which slots are wanted: the whole prompt, its first
                chunk, or prompt and generated tokens after recompute.
        """

    @abstractmethod
    def extend(self, batch: Batch, num_tokens: int = 1) -> Answer:
        """num_tokens more slots for each member, all or none: a decode step, or a prompt's next
        chunk.

        Args:
            batch: the sequences that grow.
            num_tokens: slots more for each of them.
        """

    @abstractmethod
    def release(self, seq: Sequence) -> None:
        """`seq` loses its slots: it is finished, or preempted by recompute.

        Args:
            seq: one that has slots.
        """

    @abstractmethod
    def table(self, seq: Sequence) -> list[Extent]:
        """The slots of the tokens of `seq`, in order, and those that it holds for more.

        Args:
            seq: one that has slots.
        """

    @abstractmethod
    def usage(self) -> Usage:
        """The device pool in slots."""

    def max_seq_len(self, prompt_len: int, num_seqs: int) -> int:
        """Tokens of the longest sequences of such a request that the pool, less registered
        prefixes, could hold; 0 if the policy serves no such request.

        Args:
            prompt_len: tokens of its prompt.
            num_seqs: sequences that it generates from this prompt.
        """
        return UNBOUNDED_LEN

    def counters(self) -> Mapping[str, float]:
        """The policy's own counts since the start, by name; they reach the summary."""
        return {}

    def check(self) -> None:
        """Raise AssertionError if an invariant of the policy's own state is broken."""
        used = self.usage()
        accounted = used.allocated + used.cached + used.in_transit + used.free
        assert accounted == used.total, f"slots were lost or counted twice: {used}"
