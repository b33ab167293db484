"""The witness for policies of several KV groups: what each group's tables must read back."""

from collections import Counter
from collections.abc import Iterable

from testbed.contract.clauses import require, slots_of
from testbed.contract.witness import Witness, Write
from testbed.core.sequence import Sequence
from testbed.core.slots import Extent, GroupTable
from testbed.memory.policy import MemoryPolicy, PoolSpec


class GroupWitness(Witness):
    """Reads group_tables; `pool` is in the policy's slots, with the groups whose windows are kept.

    A state's extents are those of the blocks of tokens_per_page tokens from `first` on; one extent is of the present
    state. A state is read as it was before the plan runs, because one kernel cannot wait for another sequence.
    """

    def __init__(self, policy: MemoryPolicy, pool: PoolSpec) -> None:
        super().__init__(policy, pool)
        self.stories.finds_nothing_certain()
        self.groups = pool.groups
        self._tokens_per_page: int = getattr(policy, "tokens_per_page", 1)

    def run(self, writes: Iterable[Write]) -> None:
        writes = list(writes)
        tables = {seq_id: self.policy.group_tables(seq) for seq_id, seq in self.resident.items()}
        holders = Counter(slot for seq_id in tables for slot in self._not_found(seq_id, tables[seq_id]))
        for seq, start, num_tokens in writes:
            self._generate(seq, start + num_tokens)
            self._check_states(seq, tables[seq.seq_id], start)
        for seq, start, num_tokens in writes:
            for table in tables[seq.seq_id]:
                for slots, content in self._written(seq, table, start, start + num_tokens):
                    alone = all(holders[slot] == 1 for slot in slots)
                    require(5, alone, f"{seq} writes to a slot of another sequence, in group {table.group}")
                    self.memory.write(slots, [content] * len(slots))
        for seq, start, _ in writes:
            self._check_window(seq, start)

    def check_tokens(self) -> None:
        """Clauses 5 and 8, between plans: every sequence has what its next token reads."""
        for seq in self.resident.values():
            self._check_window(seq, seq.num_stored)
            self._check_states(seq, self.policy.group_tables(seq), seq.num_stored)
        self.found.clear()

    def live_slots(self, seq: Sequence, table: list[Extent]) -> list[int]:
        found = list[int]()
        for _, extents, first, each in self.policy.group_tables(seq):
            slots = slots_of(extents)
            found += slots[: (seq.num_slots - first) * each] if each else slots
        return found

    def _not_found(self, seq_id: int, tables: list[GroupTable]) -> list[int]:
        """The slots of a sequence but for those with tokens that it found since the last plan ran."""
        own, found = list[int](), self.found.get(seq_id, 0)
        for _, extents, first, each in tables:
            pages = max(found - first, 0) // self._tokens_per_page
            own += slots_of(extents)[max(found - first, 0) * each :] if each else slots_of(extents[pages:])
        return own

    def _check_window(self, seq: Sequence, token: int) -> None:
        """A token reads the last tokens before it, in every group with slots for tokens."""
        for group, extents, first, each in self.policy.group_tables(seq):
            window = self.groups[group].window
            reads = range(max(token + 1 - window, 0) if window else 0, token)
            if each and reads:
                slots = slots_of(extents)[(reads[0] - first) * each :][: len(reads) * each]
                expected = [(group, self.tokens[seq.seq_id][i]) for i in reads for _ in range(each)]
                right = first <= reads[0] and [self.memory.device.get(slot) for slot in slots] == expected
                require(5, right, f"{seq} does not read back the tokens before {token}, in group {group}")

    def _check_states(self, seq: Sequence, tables: list[GroupTable], token: int) -> None:
        """The state of each group is that of all tokens before `token`."""
        for table in tables:
            if not table.slots_per_token and token:
                read = {self.memory.device.get(slot) for slot in self._state_slots(table, (token - 1))}
                right = read == {(table.group, tuple(self.tokens[seq.seq_id][:token]))}
                require(5, right, f"{seq} does not read back its state of {token} tokens, in group {table.group}")

    def _written(
        self, seq: Sequence, table: GroupTable, start: int, end: int
    ) -> Iterable[tuple[list[int], tuple[int, object]]]:
        """The slots that the tokens from `start` to `end` write in a group, and what they hold then."""
        tokens, each, size = self.tokens[seq.seq_id], table.slots_per_token, self._tokens_per_page
        slots = slots_of(table.extents)
        for token in range(max(start, table.first), end):
            at = (token - table.first) * each
            if each:
                require(5, at + each <= len(slots), f"{seq} has no slots for token {token} in group {table.group}")
                yield slots[at : at + each], (table.group, tokens[token])
            elif token + 1 == end or (token + 1) % size == 0:
                yield self._state_slots(table, token), (table.group, tuple(tokens[: token + 1]))

    def _state_slots(self, table: GroupTable, token: int) -> list[int]:
        """The slots of the state as `token` leaves it."""
        block = (token - table.first) // self._tokens_per_page
        return slots_of([table.extents[min(block, len(table.extents) - 1)]])
