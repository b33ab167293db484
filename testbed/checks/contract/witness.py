"""A memory that stores tokens, from which every sequence must read its own back by the policy's
tables and counts.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from collections.abc import Sequence as Seq
from itertools import chain, islice
from typing import NamedTuple

from testbed.checks.contract.clauses import (
    check_footprint,
    check_tables,
    check_usage,
    require,
    slots_of,
)
from testbed.checks.contract.token_memory import PREFIX, Stories, Tables, TokenMemory, story_tokens
from testbed.core.sequence import Sequence
from testbed.core.slots import DEVICE, GroupTable
from testbed.memory.capabilities import Capabilities
from testbed.memory.layouts import BlockLayout, PageLayout
from testbed.memory.policy import UNBOUNDED_LEN, PoolSpec


class Write(NamedTuple):
    """`num_tokens` tokens of a sequence behind the first `start` are computed when the plan
    runs.
    """

    seq: Sequence
    start: int
    num_tokens: int


class Witness:
    """The sequences on the device, what each must read back, and a memory that stores every token
    of theirs.

    A slot of the first KV group holds a token, one of another (group, token). That of a state holds
    (group, all tokens up to one): its extents are those of the blocks of tokens_per_page tokens
    from `first` on; one extent is of the present state. A state is read as it was before the plan
    runs, because one kernel cannot wait for another sequence.
    """

    def __init__(self, memory: Capabilities, pool: PoolSpec) -> None:
        self.capabilities = memory
        self.policy = memory.policy
        self.memory = TokenMemory(pool)
        self.resident: dict[int, Sequence] = {}
        self.tokens: dict[int, list[Hashable]] = {}
        self.num_found_of: dict[int, int] = {}
        self.pinned: list[int] = []
        self._num_pinned = 0
        self._seen: dict[int, tuple[int, list[int]]] = {}  # versions, and the tables then
        layout = memory.layout
        self._has_groups = memory.layered is not None
        self._windows = [group.window for group in pool.groups] if self._has_groups else [None]
        self._tokens_per_page = layout.tokens_per_page if isinstance(layout, PageLayout) else 1
        # Blocks of one group may be gone before another's: then nothing is certainly findable.
        certain = memory.publishes is not None and isinstance(layout, BlockLayout)
        self.stories = Stories(
            layout.block_size if certain and isinstance(layout, BlockLayout) else UNBOUNDED_LEN
        )

    def registered(self, num_tokens: int) -> None:
        """The policy has pinned a prefix, which an engine computes now."""
        self.pinned = slots_of(list(self.capabilities.non_sequence_slots().pinned))
        pinned = f"non_sequence_slots() has {len(self.pinned)} pinned slots"
        require(
            8,
            len(self.pinned) >= num_tokens,
            f"a prefix of {num_tokens} tokens is registered, {pinned}",
        )
        self.memory.write(self.pinned[:num_tokens], story_tokens(PREFIX, num_tokens))
        self._num_pinned = num_tokens

    def entered(self, seq: Sequence, num_cached: int) -> None:
        """`seq` is on the device; its first num_cached tokens are reported as stored when the plan
        has run.
        """
        self.resident[seq.seq_id] = seq
        self.num_found_of[seq.seq_id] = num_cached
        self.stories.entered(seq.seq_id, num_cached)

    def removed(self, seq: Sequence) -> None:
        del self.resident[seq.seq_id]

    def publish(self, seq: Sequence, num_tokens: int) -> None:
        """publish() was called: the first num_tokens tokens are stored when the plan has run."""
        self.stories.publish(seq.seq_id, num_tokens, self.tables())

    def rejected(self, seq: Sequence) -> None:
        """Marks the tokens that `seq` has computed behind its stored ones as other than those that
        follow.
        """
        del self.tokens[seq.seq_id][seq.num_stored :]

    def forked(self, parent: Sequence, child: Sequence) -> None:
        self.tokens[child.seq_id] = self.tokens[parent.seq_id][: parent.num_stored]
        self.entered(child, 0)

    def run(self, writes: list[Write]) -> None:
        """The plan runs: tokens are stored one after another, each into a slot that no other
        sequence has.

        A sequence that found tokens since the last plan ran may have slots that are written in this
        one: K and V of a layer are written before they are read.
        """
        tables = {
            seq_id: self.capabilities.group_tables(seq) for seq_id, seq in self.resident.items()
        }
        lists = {seq_id: list(self._not_found(seq_id, tables[seq_id])) for seq_id in tables}
        holders = Counter(chain(self.pinned, *lists.values()))
        for seq, start, num_tokens in writes:
            tokens = self.tokens[seq.seq_id]
            tokens.extend(islice(self.stories.fresh, max(start + num_tokens - len(tokens), 0)))
            self._check_states(seq, tables[seq.seq_id], start)
        for seq, start, num_tokens in writes:
            own = set(lists[seq.seq_id])
            for table in tables[seq.seq_id]:
                for slots, contents in self._written(seq, table, start, start + num_tokens):
                    alone = all(holders[slot] == (slot in own) for slot in slots)
                    require(
                        5,
                        alone,
                        f"{seq} writes to a slot of another sequence, in group {table.group}",
                    )
                    self.memory.write(slots, contents)
        for seq, start, _ in (
            writes if self._has_groups else ()
        ):  # a window may have moved on when the plan has run
            self._check_read(seq, start)

    def check_tokens(self) -> None:
        """Clauses 5, 8 and 13, between plans: every sequence reads back its own tokens, as far as
        its next one does.
        """
        for seq in self.resident.values():
            self._check_read(seq, seq.num_stored)
            self._check_states(seq, self.capabilities.group_tables(seq), seq.num_stored)
        self.num_found_of.clear()
        if not self._has_groups and self.capabilities.drops_tokens is None:
            self._check_versions(self.tables())

    def check_usage(self) -> None:
        """Clauses 4, 5 and 11, at any time: the policy's usage() compared with its tables."""
        used = self.policy.usage()
        check_usage(used, self.memory.num_slots[DEVICE])
        by_group = {
            seq_id: self.capabilities.group_tables(seq) for seq_id, seq in self.resident.items()
        }
        tables = {
            key: [extent for part in parts for extent in part.extents]
            for key, parts in by_group.items()
        }
        check_tables(self.capabilities, used, list(tables.values()), self.pinned)
        live = set(self.pinned[: self._num_pinned])
        for seq_id, seq in self.resident.items():
            check_footprint(self.capabilities, seq, tables[seq_id])
            for _, extents, first, slots_per_token in by_group[seq_id]:
                slots = slots_of(extents)
                if slots_per_token:
                    slots = slots[: (seq.num_slots - first) * slots_per_token]
                live.update(slots)
        require(
            4,
            used.live == len(live),
            f"usage() reports {used.live} live slots, the sequences have {len(live)}",
        )

    def _check_versions(self, tables: Tables) -> None:
        """Clause 13, since the last call of this."""
        before = self._seen
        self._seen = {seq_id: (self.resident[seq_id].version, tables[seq_id]) for seq_id in tables}
        for seq_id, (version, slots) in self._seen.items():
            old_version, old = before.get(seq_id, (version, []))
            require(
                13,
                version != old_version or slots[: len(old)] == old,
                f"the table of {self.resident[seq_id]} changed before its end, and its version "
                "did not (call seq.change_table())",
            )

    def check_alone(self, seqs: Iterable[Sequence], num_tokens: int) -> None:
        """Clause 5: each of these is about to write its last num_tokens tokens, where no other may
        read.
        """
        tables = self.tables()
        holders = Counter(chain(self.pinned, *tables.values()))
        for seq in seqs if num_tokens and self.capabilities.forks is not None else ():
            num_kept = self.capabilities.num_stored(seq.prompt_len, seq.num_slots)
            slots = tables[seq.seq_id][:num_kept][-num_tokens:]
            alone = all(holders[slot] == 1 for slot in slots)
            require(
                5,
                alone,
                f"{seq} writes to a block that another one shares (copy a shared block first)",
            )

    def listed_hit(self, seq: Sequence, tables: Tables) -> int:
        """Tokens of a new prompt that must be found, if each block can be found that the policy
        lists as cached or that a table has to publish; 0 if transfers may still change them.
        """
        lister, size = self.capabilities.lists_other_slots, self.stories.block_size
        if lister is None or size == UNBOUNDED_LEN or self.capabilities.transfers is not None:
            return 0
        slots = slots_of(list(lister.non_sequence_slots().cached))
        blocks = [slots[start : start + size] for start in range(0, len(slots), size)]
        contents = {tuple(self.memory.read(block)) for block in blocks}
        return self.stories.certain_hit(seq.seq_id, seq.prompt_len, tables, contents)

    def tables(self) -> Tables:
        return {seq_id: slots_of(self.policy.table(seq)) for seq_id, seq in self.resident.items()}

    def _not_found(self, seq_id: int, tables: list[GroupTable]) -> Iterator[int]:
        """The slots of a sequence but for those with tokens that it found since the last plan
        ran.
        """
        num_found = self.num_found_of.get(seq_id, 0)
        for _, extents, first, slots_per_token in tables:
            skipped = max(num_found - first, 0)
            held = extents if slots_per_token else extents[skipped // self._tokens_per_page :]
            yield from slots_of(held)[skipped * slots_per_token :]

    def _check_read(self, seq: Sequence, token: int) -> None:
        """A token reads those before it: the last of them in a window, some if the policy drops
        tokens, else all.
        """
        for group, extents, first, slots_per_token in self.capabilities.group_tables(seq):
            window = self._windows[group]
            begin = max(token + 1 - window, 0) if window else 0
            if not slots_per_token or begin >= token:
                continue
            name = f"{seq} does not read back the tokens before {token}, in group {group}"
            expected = contents_of(group, self.tokens[seq.seq_id][begin:token], slots_per_token)
            slots = slots_of(extents)
            if self.capabilities.drops_tokens is not None:
                num_kept = self.capabilities.num_stored(seq.prompt_len, token)
                read = self.memory.read(slots[:num_kept])
                require(
                    5,
                    is_subsequence(read, expected),
                    f"{name}, not even those that it has not dropped",
                )
                continue
            require(5, first <= begin, f"{name}: it begins at token {first}")
            start, end = (place * slots_per_token for place in (begin - first, token - first))
            read = self.memory.read(slots[start:end])
            num_found = 0 if window else self.num_found_of.get(seq.seq_id, 0) * slots_per_token
            is_published = read[:num_found] == expected[:num_found]
            require(
                8,
                is_published,
                f"{num_found} slots of tokens were published for {seq}, but others are there, or "
                "none",
            )
            require(5, read == expected, name)

    def _check_states(self, seq: Sequence, tables: list[GroupTable], token: int) -> None:
        for table in tables:
            if not table.slots_per_token and token:
                read = set(self.memory.read(self._state_slots(table, token - 1)))
                right = read == {(table.group, tuple(self.tokens[seq.seq_id][:token]))}
                require(
                    5,
                    right,
                    f"{seq} does not read back its state of {token} tokens, in group {table.group}",
                )

    def _written(
        self, seq: Sequence, table: GroupTable, start: int, end: int
    ) -> Iterator[tuple[list[int], list[Hashable]]]:
        group, extents, first, slots_per_token = table
        tokens = self.tokens[seq.seq_id]
        start = min(max(start, first), end)  # what is dropped at once is never stored
        if slots_per_token:
            begin_slot, end_slot = (
                (start - first) * slots_per_token,
                (end - first) * slots_per_token,
            )
            slots = slots_of(extents)[begin_slot:end_slot]
            require(
                5,
                len(slots) == (end - start) * slots_per_token,
                f"{seq} has no slots for token {end - 1} in group {group}",
            )
            yield slots, contents_of(group, tokens[start:end], slots_per_token)
            return
        for token in range(start, end):
            if token + 1 == end or (token + 1) % self._tokens_per_page == 0:
                slots = self._state_slots(table, token)
                yield slots, [(group, tuple(tokens[: token + 1]))] * len(slots)

    def _state_slots(self, table: GroupTable, token: int) -> list[int]:
        block = (token - table.first) // self._tokens_per_page
        return slots_of([table.extents[min(block, len(table.extents) - 1)]])


def contents_of(group: int, tokens: list[Hashable], slots_per_token: int) -> list[Hashable]:
    """Contents of the slots of these tokens in a KV group."""
    if not group and slots_per_token == 1:
        return tokens
    return [(group, token) if group else token for token in tokens for _ in range(slots_per_token)]


def is_subsequence(read: Seq[Hashable], tokens: Seq[Hashable]) -> bool:
    """True if `read` has some of the tokens, in their order, and the newest of them."""
    if not tokens:
        return not read
    rest = iter(tokens)
    return bool(read) and read[-1] == tokens[-1] and all(token in rest for token in read)
