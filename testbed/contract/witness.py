"""What every sequence has stored, token by token, against what the policy's tables and counts say."""

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import NamedTuple

from testbed.contract.clauses import check_footprint, check_tables, check_usage, require
from testbed.contract.memory import TokenMemory, slots_of
from testbed.contract.prefixes import PREFIX, Stories, Tables, story_tokens
from testbed.core.sequence import Sequence
from testbed.memory.policy import MemoryPolicy


class Write(NamedTuple):
    """`num_tokens` tokens of a sequence behind the first `start` are computed when the plan runs."""

    seq: Sequence
    start: int
    num_tokens: int


class Witness:
    """The sequences on the device, what each must read back, and a memory that stores every token of theirs."""

    def __init__(self, policy: MemoryPolicy) -> None:
        self.policy = policy
        self.memory = TokenMemory()
        self.stories = Stories(policy)
        self.resident: dict[int, Sequence] = {}
        self.tokens: dict[int, list[Hashable]] = {}
        self.found: dict[int, int] = {}
        self.pinned: list[int] = []
        self._num_pinned = 0

    def registered(self, num_tokens: int) -> None:
        """The policy has pinned a prefix, which an engine computes now."""
        self.pinned = slots_of(list(self.policy.unowned().pinned))
        enough = len(self.pinned) >= num_tokens
        require(
            8, enough, f"a prefix of {num_tokens} tokens is registered, unowned() lists {len(self.pinned)} pinned slots"
        )
        self.memory.write(self.pinned[:num_tokens], story_tokens(PREFIX, num_tokens))
        self._num_pinned = num_tokens

    def entered(self, seq: Sequence, num_cached: int) -> None:
        """`seq` is on the device; its first num_cached tokens are said to be there when the plan has run."""
        self.resident[seq.seq_id] = seq
        self.found[seq.seq_id] = num_cached
        self.stories.entered(seq.seq_id, num_cached)

    def left(self, seq: Sequence) -> None:
        """`seq` is no longer on the device."""
        del self.resident[seq.seq_id]
        self.stories.left(seq.seq_id)

    def computed(self, seq: Sequence, num_tokens: int) -> None:
        """The policy was told that the first num_tokens tokens are there when the plan has run."""
        self.stories.computed(seq.seq_id, num_tokens, self.tables())

    def certain_hit(self, seq: Sequence) -> int:
        """Tokens that an admission of `seq` must find."""
        return self.stories.certain_hit(seq.seq_id, seq.prompt_len, self.tables())

    def forked(self, parent: Sequence, child: Sequence) -> None:
        """`child` goes on with the parent's tokens."""
        self.tokens[child.seq_id] = self.tokens[parent.seq_id][: parent.stored]
        self.entered(child, 0)

    def run(self, writes: Iterable[Write]) -> None:
        """The plan runs: tokens are stored one after another, each where only its sequence holds the slot.

        Whoever found tokens since the last plan ran may hold slots that are written in this one: K and V of a layer
        are written before they are read.
        """
        tables = self.tables()
        holders = Counter(self.pinned)
        for seq_id, table in tables.items():
            holders.update(table[self.found.get(seq_id, 0) :])
        for seq, start, num_tokens in writes:
            end = start + num_tokens
            self._generate(seq, end)
            slots = tables[seq.seq_id][: self.policy.stored(end)]
            enough = len(slots) == self.policy.stored(end)
            require(5, enough, f"the table of {seq} has {len(slots)} slots, too few for {end} tokens")
            slots = slots[-num_tokens:]  # of tokens that a policy drops at once none is stored
            own = set(tables[seq.seq_id][self.found.get(seq.seq_id, 0) :])
            alone = all(holders[slot] == (slot in own) for slot in slots)
            require(5, alone, f"{seq} writes to a slot that another one holds")
            self.memory.write(slots, self.tokens[seq.seq_id][end - len(slots) : end])

    def check_usage(self) -> None:
        """Clauses 4, 5 and 11, at any time: the policy's account against its tables."""
        used = self.policy.usage()
        check_usage(used)
        tables = {seq_id: self.policy.table(seq) for seq_id, seq in self.resident.items()}
        check_tables(self.policy, used, list(tables.values()), self.pinned)
        live = set(self.pinned[: self._num_pinned])
        for seq_id, seq in self.resident.items():
            check_footprint(self.policy, seq, tables[seq_id])
            live.update(slots_of(tables[seq_id])[: self.policy.stored(seq.room)])
        require(
            4, used.live == len(live), f"usage() says {used.live} live slots, the sequences have room for {len(live)}"
        )
        if not (self.pinned and self.policy.moves_tiers):  # who is on the host may have kept the prefix here
            saved = sum(map(len, map(slots_of, tables.values()))) + len(self.pinned) - used.held
            require(4, used.saved == saved, f"usage() says that sharing saves {used.saved} slots, the tables {saved}")

    def check_tokens(self) -> None:
        """Clauses 5 and 8, between plans: every sequence reads back its own tokens."""
        for seq_id, seq in self.resident.items():
            tokens = self.tokens[seq_id][: seq.stored]
            read = self.memory.read(self.policy.table(seq), self.policy.stored(seq.stored))
            found = self.found.get(seq_id, 0)
            known = self.policy.drops_tokens or read[:found] == tokens[:found]
            require(8, known, f"{found} tokens were said to be stored for {seq}, but others are, or none")
            if self.policy.drops_tokens:
                require(5, is_subsequence(read, tokens), f"{seq} does not read back what it has not dropped")
            else:
                require(5, read == tokens, f"{seq} does not read back its own tokens")
        self.found.clear()

    def tables(self) -> Tables:
        """The slots of every sequence on the device."""
        return {seq_id: slots_of(self.policy.table(seq)) for seq_id, seq in self.resident.items()}

    def _generate(self, seq: Sequence, num_tokens: int) -> None:
        """Sequences generate tokens that nobody else has."""
        tokens = self.tokens[seq.seq_id]
        tokens.extend(self.stories.fresh() for _ in range(num_tokens - len(tokens)))


def is_subsequence(read: list[Hashable], tokens: list[Hashable]) -> bool:
    """Whether `read` is some of the tokens in their order, the newest among them."""
    if not tokens:
        return not read
    rest = iter(tokens)
    return bool(read) and read[-1] == tokens[-1] and all(token in rest for token in read)
