"""The plug-in API for memory policies, and what a policy is told about its pool."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from testbed.core.sequence import Sequence
from testbed.core.slots import Answer, Answers, Copy, Extent, Grant, Ops, Refusal, Tier, Unowned, Usage, Waste


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """The pools that a policy manages, in slots, and the longest sequence in tokens."""

    num_slots: int
    max_len: int
    num_host_slots: int = 0


class UnsupportedError(TypeError):
    """The policy does not declare the trait that this call needs."""


class MemoryPolicy(ABC):
    """Answers "may these sequences have room, and where?"

    A policy has no clock, queue, random numbers, GPU or logger; what must physically happen it returns as `Ops`.
    Refusals are values and change nothing. The clauses that every policy must keep are in testbed.contract.
    The constructor takes a PoolSpec first, then the policy's own parameters by name.
    """

    shares = False
    caches_prefixes = False
    moves_tiers = False
    reads_output_len = False

    @abstractmethod
    def admit(self, seq: Sequence, num_tokens: int) -> Answer:
        """First room for num_tokens tokens of `seq`; the grant says how many of them are already cached."""

    @abstractmethod
    def extend(self, seqs: Iterable[Sequence], num_tokens: int) -> Answer:
        """num_tokens more slots for each listed sequence, all or none."""

    @abstractmethod
    def release(self, seq: Sequence) -> None:
        """`seq` needs nothing any more: finished, aborted, or preempted by recompute."""

    def admit_all(self, seqs: list[Sequence], num_tokens: int) -> Answers:
        """First room for num_tokens tokens of each of these sequences, which have one prompt; all or none.

        Where the policy shares, this is a group that comes back after recompute: the sequences differ behind their
        prompt. They are computed in this order, so a grant may count as cached what those before it store by then.
        """
        grants: list[Grant] = []
        for seq in seqs:
            answer = self.admit(seq, num_tokens)
            if isinstance(answer, Refusal):
                for admitted in seqs[: len(grants)]:
                    self.withdraw(admitted)
                return answer
            grants.append(answer)
        return grants

    def withdraw(self, seq: Sequence) -> None:
        """Release `seq`, whose tokens were not computed after all since it was admitted: publish none."""
        self.release(seq)

    @abstractmethod
    def table(self, seq: Sequence) -> list[Extent]:
        """Where the tokens of `seq` lie, in order, with the room that it holds for more."""

    @abstractmethod
    def usage(self) -> Usage:
        """The device pool in slots."""

    def horizon(self, seqs: Iterable[Sequence], limit: int) -> int:
        """Promise: extend(seqs, k) succeeds without ops for every k up to the answer, which is at most `limit`."""
        return 0

    def waste(self, seq: Sequence, final_len: int) -> Waste | None:
        """Slots that `seq` will hold and never use if it ends at final_len; None: look at its table each step."""
        return None

    def fits(self, prompt_len: int, output_len: int, num_seqs: int) -> bool:
        """Whether such a request, alone in the pool less registered prefixes, could run to its end."""
        return True

    def fork(self, parent: Sequence, child: Sequence) -> Ops:
        """`child` goes on with the parent's tokens; the copies that this takes.

        Where the policy shares, a new child is admitted by this; one that is resident gives up what it has (a beam
        candidate that did not survive, Fig. 9). Where it does not, the child has its own room and gets a copy.
        """
        source, target = self.table(parent)[0], self.table(child)[0]
        return Ops((Copy(source.start, target.start, min(source.length, target.length)),))

    def move(self, seqs: list[Sequence], tier: Tier) -> Answer:
        """Take a whole group to HOST or back to DEVICE; shared blocks move once."""
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
