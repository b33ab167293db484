"""What every sequence has stored, token by token, against what the policy's tables and counts say."""

from collections.abc import Sequence as Seq

from testbed.contract.clauses import check_disjoint, require
from testbed.contract.memory import TokenMemory, slots_of
from testbed.contract.prefixes import Slots, Stories
from testbed.core.sequence import Sequence
from testbed.core.slots import Tier
from testbed.memory.policy import MemoryPolicy


class Witness:
    """The sequences that a policy holds, and a memory that stores every token of theirs in full.

    Sequences of one `family` have forked from one another, or came together.
    """

    def __init__(self, policy: MemoryPolicy) -> None:
        self.policy = policy
        self.memory = TokenMemory()
        self.stories = Stories(policy)
        self.resident: dict[int, Sequence] = {}
        self.swapped: dict[int, Sequence] = {}
        self.tokens: dict[int, list[int]] = {}
        self.family: dict[int, int] = {}
        self._final_len: dict[int, int] = {}

    def admitted(self, seq: Sequence, final_len: int, family: int, num_cached: int, known: int) -> None:
        """`seq` is resident; num_cached tokens are said to be stored, all but the first `known` will be computed."""
        read = self.memory.read(self.policy.table(seq), num_cached)
        self.stories.check_hit(seq.seq_id, num_cached, read, self._stored())
        self._enter(seq, final_len, family, [self.stories.token(seq.seq_id, i) for i in range(known)])

    def forked(self, parent: Sequence, child: Sequence) -> None:
        """`child` has the parent's tokens, and is resident if it was not yet."""
        of = parent.seq_id
        self._enter(child, self._final_len[of], self.family[of], list(self.tokens[of]))

    def released(self, seq: Sequence) -> None:
        """The policy holds `seq` no longer."""
        self.resident.pop(seq.seq_id, None)
        self.swapped.pop(seq.seq_id, None)

    def moved(self, seqs: list[Sequence], tier: Tier) -> None:
        """These sequences are on that tier now."""
        source, target = (self.resident, self.swapped) if tier is Tier.HOST else (self.swapped, self.resident)
        for seq in seqs:
            target[seq.seq_id] = source.pop(seq.seq_id)
        if tier is Tier.DEVICE:
            self._computed(seqs)

    def relatives(self, seq: Sequence) -> list[Sequence]:
        """The sequences of its family on the tier where `seq` is, itself included."""
        tier = self.swapped if seq.seq_id in self.swapped else self.resident
        return [other for other in tier.values() if self.family[other.seq_id] == self.family[seq.seq_id]]

    def length(self, seq: Sequence) -> int:
        """Tokens that `seq` has stored."""
        return len(self.tokens[seq.seq_id])

    def room(self, seqs: Seq[Sequence]) -> int:
        """Tokens that each of these may still store."""
        return min((self._final_len[seq.seq_id] - self.length(seq) for seq in seqs), default=0)

    def write(self, seqs: list[Sequence], num_tokens: int) -> None:
        """Every sequence computes its next tokens and stores their K and V: clause 5."""
        slots: dict[int, int] = {}
        for seq in self.resident.values():
            for slot in set(slots_of(self.policy.table(seq))):
                slots[slot] = slots.get(slot, 0) + 1
        for seq in seqs:
            table, length = self.policy.table(seq), self.length(seq)
            written = slots_of(table)[length : length + num_tokens]
            require(5, len(written) == num_tokens, f"the table of {seq} has no room for its {num_tokens} new tokens")
            require(5, all(slots[slot] == 1 for slot in written), f"{seq} writes to a slot that another one holds")
            new = [self.stories.token(seq.seq_id, length + i) for i in range(num_tokens)]
            self.memory.write(table, length, new)
            self.tokens[seq.seq_id] += new
        self._computed(seqs)

    def check(self) -> None:
        """Clauses 4 and 5: every sequence reads back its own tokens, and they are all that is stored."""
        if not self.policy.shares:
            check_disjoint(self.policy, list(self.resident.values()))
        stored: set[int] = set()
        for seq in self.resident.values():
            tokens, table = self.tokens[seq.seq_id], self.policy.table(seq)
            require(5, self.memory.read(table, len(tokens)) == tokens, f"{seq} does not read back its own tokens")
            stored.update(slots_of(table)[: len(tokens)])
        live = self.policy.usage().live
        require(4, live == len(stored), f"usage() says {live} live slots, the sequences store {len(stored)}")

    def _enter(self, seq: Sequence, final_len: int, family: int, tokens: list[int]) -> None:
        self.resident[seq.seq_id] = seq
        self._final_len[seq.seq_id] = final_len
        self.family[seq.seq_id] = family
        self.tokens[seq.seq_id] = tokens

    def _computed(self, seqs: list[Sequence]) -> None:
        """From the next call on others may find what `seqs` store."""
        stored = self._stored()
        for seq in seqs:
            self.stories.computed(seq.seq_id, stored)

    def _stored(self) -> Slots:
        """The slots in which every resident sequence stores its tokens."""
        seqs = self.resident.values()
        return {seq.seq_id: slots_of(self.policy.table(seq))[: self.length(seq)] for seq in seqs}
