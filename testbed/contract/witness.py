"""A memory that really stores tokens, and what every sequence must read back by the policy's tables and counts."""

from collections import Counter
from collections.abc import Hashable, Iterable
from itertools import chain
from typing import NamedTuple

from testbed.contract.clauses import check_footprint, check_tables, check_usage, require, slots_of
from testbed.contract.prefixes import PREFIX, Stories, Tables, story_tokens
from testbed.core.sequence import Sequence
from testbed.core.slots import DEVICE, Copy, Extent, Move, Ops
from testbed.memory.policy import MemoryPolicy, PoolSpec

Slots = dict[int, Hashable]


class TokenMemory:
    """The slots of the pool, tier by tier; performs a policy's ops as an engine would."""

    def __init__(self, pool: PoolSpec) -> None:
        self.num_slots = {DEVICE: pool.num_slots, **{tier.name: tier.num_slots for tier in pool.tiers}}
        self.tiers: dict[str, Slots] = {name: {} for name in self.num_slots}
        self.in_transit: dict[int, tuple[Move, Slots, Slots]] = {}

    @property
    def device(self) -> Slots:
        """The token in every slot of the device."""
        return self.tiers[DEVICE]

    def perform(self, ops: Ops) -> None:
        """Carry out all moves between tiers and all copies; each reads its sources before it overwrites anything."""
        for source, target, copies in (*ops.moves, Move(DEVICE, DEVICE, ops.copies)):
            self._check_inside(source, [Extent(copy.src, copy.length) for copy in copies])
            self._check_inside(target, [Extent(copy.dst, copy.length) for copy in copies])
            self._copy(self.tiers[source], self.tiers[target], copies)
        for move_id, move in ops.background:
            require(12, move_id not in self.in_transit, f"two transfers in the background have the id {move_id}")
            self._check_inside(move.source, [Extent(copy.src, copy.length) for copy in move.copies])
            self._check_inside(move.target, [Extent(copy.dst, copy.length) for copy in move.copies])
            self.in_transit[move_id] = (move, *self._ends(move))

    def land(self, move_id: int) -> None:
        """The transfer has ended, and no other call has written to what it reads or writes meanwhile."""
        move, read, written = self.in_transit.pop(move_id)
        name = f"transfer {move_id} from {move.source} to {move.target}"
        now_read, now_written = self._ends(move)
        require(12, now_read == read, f"what {name} reads was written before it has landed")
        require(12, now_written == written, f"{name}: its target was written by another call before it has landed")
        self._copy(self.tiers[move.source], self.tiers[move.target], move.copies)

    def _ends(self, move: Move) -> tuple[Slots, Slots]:
        """What the slots that a move reads hold now, and those that it writes."""
        source, target = self.tiers[move.source], self.tiers[move.target]
        pairs = [(src + i, dst + i) for src, dst, length in move.copies for i in range(length)]
        return {src: source.get(src) for src, _ in pairs}, {dst: target.get(dst) for _, dst in pairs}

    def write(self, slots: Iterable[int], tokens: Iterable[Hashable]) -> None:
        """Store tokens in these slots of the device, one each."""
        self.device.update(zip(slots, tokens, strict=True))

    def read(self, table: list[Extent], num_tokens: int) -> list[Hashable]:
        """The first num_tokens tokens of a table; None where nothing was ever stored."""
        return [self.device.get(slot) for slot in slots_of(table)[:num_tokens]]

    def _check_inside(self, tier: str, extents: list[Extent]) -> None:
        """Clause 4: nothing is read or written beyond the configured slots."""
        given = self.num_slots.get(tier, 0)
        require(4, tier in self.num_slots, f"ops name the tier {tier}; there are {', '.join(self.num_slots)}")
        for start, length in extents:
            inside = start + length <= given
            require(4, inside, f"ops reach slots {start} to {start + length} of the {tier}; {given} were given")

    def _copy(self, source: Slots, target: Slots, copies: Iterable[Copy]) -> None:
        pairs = [(dst + i, source.get(src + i)) for src, dst, length in copies for i in range(length)]
        target.update(pairs)


class Write(NamedTuple):
    """`num_tokens` tokens of a sequence behind the first `start` are computed when the plan runs."""

    seq: Sequence
    start: int
    num_tokens: int


class Witness:
    """The sequences on the device, what each must read back, and a memory that stores every token of theirs."""

    def __init__(self, policy: MemoryPolicy, pool: PoolSpec) -> None:
        self.policy = policy
        self.memory = TokenMemory(pool)
        self.stories = Stories(policy)
        self.resident: dict[int, Sequence] = {}
        self.tokens: dict[int, list[Hashable]] = {}
        self.found: dict[int, int] = {}
        self.pinned: list[int] = []
        self._num_pinned = 0

    def registered(self, num_tokens: int) -> None:
        """The policy has pinned a prefix, which an engine computes now."""
        self.pinned = slots_of(list(self.policy.non_sequence_slots().pinned))
        enough = len(self.pinned) >= num_tokens
        require(
            8,
            enough,
            f"a prefix of {num_tokens} tokens is registered, non_sequence_slots() has {len(self.pinned)} pinned slots",
        )
        self.memory.write(self.pinned[:num_tokens], story_tokens(PREFIX, num_tokens))
        self._num_pinned = num_tokens

    def entered(self, seq: Sequence, num_cached: int) -> None:
        """`seq` is on the device; its first num_cached tokens are reported as stored when the plan has run."""
        self.resident[seq.seq_id] = seq
        self.found[seq.seq_id] = num_cached
        self.stories.entered(seq.seq_id, num_cached)

    def removed(self, seq: Sequence) -> None:
        """`seq` is no longer on the device."""
        del self.resident[seq.seq_id]
        self.stories.removed(seq.seq_id)

    def publish(self, seq: Sequence, num_tokens: int) -> None:
        """publish() was called: the first num_tokens tokens are stored when the plan has run."""
        self.stories.publish(seq.seq_id, num_tokens, self.tables())

    def certain_hit(self, seq: Sequence) -> int:
        """Tokens that an admission of `seq` must find."""
        return self.stories.certain_hit(seq.seq_id, seq.prompt_len, self.tables())

    def forked(self, parent: Sequence, child: Sequence) -> None:
        """`child` continues with the parent's tokens."""
        self.tokens[child.seq_id] = self.tokens[parent.seq_id][: parent.num_stored]
        self.entered(child, 0)

    def run(self, writes: Iterable[Write]) -> None:
        """The plan runs: tokens are stored one after another, each into a slot that no other sequence has.

        A sequence that found tokens since the last plan ran may have slots that are written in this one: K and V of a
        layer are written before they are read.
        """
        tables = self.tables()
        holders = Counter(self.pinned)
        for seq_id, table in tables.items():
            holders.update(table[self.found.get(seq_id, 0) :])
        for seq, start, num_tokens in writes:
            end = start + num_tokens
            self._generate(seq, end)
            slots = tables[seq.seq_id][: self.policy.num_stored(end)]
            enough = len(slots) == self.policy.num_stored(end)
            require(5, enough, f"the table of {seq} has {len(slots)} slots, too few for {end} tokens")
            slots = slots[-num_tokens:]  # of tokens that a policy drops at once none is stored
            own = set(tables[seq.seq_id][self.found.get(seq.seq_id, 0) :])
            alone = all(holders[slot] == (slot in own) for slot in slots)
            require(5, alone, f"{seq} writes to a slot of another sequence")
            self.memory.write(slots, self.tokens[seq.seq_id][end - len(slots) : end])

    def check_usage(self) -> None:
        """Clauses 4, 5 and 11, at any time: the policy's usage() compared with its tables."""
        used = self.policy.usage()
        check_usage(used, self.memory.num_slots[DEVICE])
        tables = {seq_id: self.policy.table(seq) for seq_id, seq in self.resident.items()}
        check_tables(self.policy, used, list(tables.values()), self.pinned)
        live = set(self.pinned[: self._num_pinned])
        for seq_id, seq in self.resident.items():
            check_footprint(self.policy, seq, tables[seq_id])
            live.update(self.live_slots(seq, tables[seq_id]))
        require(4, used.live == len(live), f"usage() reports {used.live} live slots, the sequences have {len(live)}")
        if not (self.pinned and self.policy.moves_tiers):  # a group on the host may have kept the prefix here
            saved = sum(map(len, map(slots_of, tables.values()))) + len(self.pinned) - used.held
            require(4, used.saved == saved, f"usage() reports {used.saved} slots saved by sharing, the tables {saved}")

    def live_slots(self, seq: Sequence, table: list[Extent]) -> list[int]:
        """Slots of a sequence that store a token, or will when the plan has run."""
        return slots_of(table)[: self.policy.num_stored(seq.num_slots)]

    def check_alone(self, seqs: Iterable[Sequence], num_tokens: int) -> None:
        """Clause 5: each of these is about to write its last num_tokens tokens, where no other may read."""
        tables = self.tables()
        holders = Counter(chain(self.pinned, *tables.values()))
        for seq in seqs if num_tokens and self.policy.shares else ():
            slots = tables[seq.seq_id][: self.policy.num_stored(seq.num_slots)][-num_tokens:]
            alone = all(holders[slot] == 1 for slot in slots)
            require(5, alone, f"{seq} writes to a block that another one shares (copy a shared block first)")

    def check_tokens(self) -> None:
        """Clauses 5 and 8, between plans: every sequence reads back its own tokens."""
        for seq_id, seq in self.resident.items():
            tokens = self.tokens[seq_id][: seq.num_stored]
            read = self.memory.read(self.policy.table(seq), self.policy.num_stored(seq.num_stored))
            found = self.found.get(seq_id, 0)
            known = self.policy.drops_tokens or read[:found] == tokens[:found]
            require(8, known, f"{found} tokens were published for {seq}, but others are, or none")
            if self.policy.drops_tokens:
                require(5, is_subsequence(read, tokens), f"{seq} does not read back what it has not dropped")
            else:
                require(5, read == tokens, f"{seq} does not read back its own tokens")
        self.found.clear()

    def tables(self) -> Tables:
        """The slots of every sequence on the device."""
        return {seq_id: slots_of(self.policy.table(seq)) for seq_id, seq in self.resident.items()}

    def _generate(self, seq: Sequence, num_tokens: int) -> None:
        """Sequences generate tokens that occur once."""
        tokens = self.tokens[seq.seq_id]
        tokens.extend(self.stories.fresh() for _ in range(num_tokens - len(tokens)))


def is_subsequence(read: list[Hashable], tokens: list[Hashable]) -> bool:
    """Whether `read` is some of the tokens in their order, the newest among them."""
    if not tokens:
        return not read
    rest = iter(tokens)
    return bool(read) and read[-1] == tokens[-1] and all(token in rest for token in read)
