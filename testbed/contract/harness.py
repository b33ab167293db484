"""Carries out calls on a policy as a scheduler and an engine would, and checks every clause after each."""

import copy
from collections.abc import Callable, Iterable
from itertools import count

from testbed.contract.calls import Admit, Call, Extend, Fork, Join, Move, Refork, Release, Step
from testbed.contract.clauses import (
    ClauseBroken,
    check_all_returned,
    check_conservation,
    check_disjoint,
    check_horizon,
    check_never,
    check_refusal,
    check_steps,
    require,
    state_of,
)
from testbed.contract.memory import TokenMemory, slots_of
from testbed.contract.prefixes import Slots, Stories
from testbed.core.batch import Batch
from testbed.core.request import Request
from testbed.core.sequence import OracleError, Sequence
from testbed.core.slots import Answer, Grant, Refusal, Tier
from testbed.memory.policy import MemoryPolicy

PolicyFactory = Callable[[], MemoryPolicy]


class Harness:
    """A policy, the sequences that it holds, and a memory that stores every token of theirs in full."""

    def __init__(self, factory: PolicyFactory) -> None:
        self.factory = factory
        self.policy = factory()
        self.batch = Batch()
        self.memory = TokenMemory()
        self.resident: dict[int, Sequence] = {}
        self.swapped: dict[int, Sequence] = {}
        self.stories = Stories(self.policy)
        self.tokens: dict[int, list[int]] = {}
        self.final_len: dict[int, int] = {}
        self.family: dict[int, int] = {}
        self.refused: tuple[Sequence, int] | None = None
        self.log: list[str] = []
        self.answers: list[object] = []
        self._seq_id = count()

    def run(self, calls: Iterable[Call]) -> list[object]:
        """Carry out all calls, then release everything; the visible history, for clause 9."""
        try:
            for call in calls:
                self._carry_out(call)
                self._check()
            for seq in [*self.resident.values(), *self.swapped.values()]:
                self._release(seq)
                self._check()
            check_all_returned(self.policy, 0)
        except OracleError as error:
            self._fail(ClauseBroken(10, str(error)))
        except ClauseBroken as broken:
            self._fail(broken)
        return self.answers

    def _fail(self, broken: ClauseBroken) -> None:
        broken.calls = self.log
        raise broken

    def _carry_out(self, call: Call) -> None:
        match call:
            case Admit():
                self._admit(call)
            case Step(num_tokens):
                self._step(num_tokens)
            case Extend(mask, num_tokens):
                self._extend(mask, num_tokens)
            case Join(pick) if self.resident:
                self._join(self._pick(self.resident, pick))
            case Release(pick) if self.resident or self.swapped:
                self._release(self._pick({**self.resident, **self.swapped}, pick))
            case Fork(pick) if self.resident and self.policy.shares:
                self._fork(self._pick(self.resident, pick))
            case Refork(pick) if self.resident and self.policy.shares:
                self._refork(self._pick(self.resident, pick))
            case Move(pick) if (self.resident or self.swapped) and self.policy.moves_tiers:
                self._move(self._pick({**self.resident, **self.swapped}, pick))
            case _:
                pass

    def _pick(self, seqs: dict[int, Sequence], pick: int) -> Sequence:
        return list(seqs.values())[pick % len(seqs)]

    def _admit(self, call: Admit) -> None:
        seq_id, num_tokens = next(self._seq_id), min(call.chunk or call.prompt_len, call.prompt_len)
        ids = self.stories.tell(seq_id, call)
        request = Request(seq_id, 0, call.prompt_len, call.output_len, prompt_ids=ids)
        seq = Sequence(seq_id, request, oracle=self.policy.reads_output_len)
        told = f"  # {call.shared} tokens of story {call.story}" if call.shared else ""
        answer = self._ask(f"admit({seq}, {num_tokens}){told}", lambda: self.policy.admit(seq, num_tokens))
        check_never(self.factory(), seq, num_tokens, answer)
        if isinstance(answer, Refusal):
            self.refused = seq, num_tokens
            return
        read = self.memory.read(self.policy.table(seq), answer.num_cached)
        self.stories.check_hit(seq_id, answer.num_cached, read, self._stored())
        self.resident[seq_id] = seq
        self.final_len[seq_id] = call.prompt_len + call.output_len
        self.family[seq_id] = seq_id
        # The last prompt token is computed even if it is cached: it yields the first output token.
        self.tokens[seq_id] = list(ids[: min(answer.num_cached, call.prompt_len - 1)])
        self._write([seq], max(num_tokens, answer.num_cached) - len(self.tokens[seq_id]))

    def _step(self, num_tokens: int) -> None:
        room = min((self.final_len[seq.seq_id] - len(self.tokens[seq.seq_id]) for seq in self.batch), default=0)
        if not (num_tokens := min(num_tokens, room)):
            return
        horizon = check_horizon(self.policy, self.batch, num_tokens)
        twin, members = copy.deepcopy((self.policy, self.batch))
        call = f"extend(batch of {list(self.batch)}, {num_tokens})  # horizon {horizon}"
        answer = self._ask(call, lambda: self.policy.extend(self.batch, num_tokens))
        check_steps(twin, members, num_tokens, answer, self.policy.usage())
        if isinstance(answer, Grant):
            self.batch.advance(num_tokens)
            self._write(list(self.batch), num_tokens)

    def _extend(self, mask: int, num_tokens: int) -> None:
        free = [seq for seq in self.resident.values() if seq.seq_id not in self.batch.sequences]
        seqs = [seq for i, seq in enumerate(free) if mask >> i & 1]
        room = min((self.final_len[seq.seq_id] - len(self.tokens[seq.seq_id]) for seq in seqs), default=0)
        if not (num_tokens := min(num_tokens, room)):
            return
        answer = self._ask(f"extend({seqs}, {num_tokens})", lambda: self.policy.extend(seqs, num_tokens))
        if isinstance(answer, Grant):
            self._write(seqs, num_tokens)

    def _join(self, seq: Sequence) -> None:
        if seq.seq_id in self.batch.sequences:
            self._leave(seq)
        elif self._has_prompt(seq):
            self.log.append(f"batch.join({seq})")
            self.batch.join(seq, len(self.tokens[seq.seq_id]))

    def _has_prompt(self, seq: Sequence) -> bool:
        """Only sequences whose prompt is computed are forked, or decode in lockstep."""
        return len(self.tokens[seq.seq_id]) >= seq.prompt_len

    def _leave(self, seq: Sequence) -> None:
        if seq.seq_id in self.batch.sequences:
            self.log.append(f"batch.leave({seq})")
            self.batch.leave(seq, len(self.tokens[seq.seq_id]))

    def _release(self, seq: Sequence) -> None:
        self._leave(seq)
        self.log.append(f"release({seq})")
        self.policy.release(seq)
        self.resident.pop(seq.seq_id, None)
        self.swapped.pop(seq.seq_id, None)
        self.refused = None

    def _fork(self, parent: Sequence) -> None:
        if not self._has_prompt(parent):
            return
        seq_id = next(self._seq_id)
        final_len = self.final_len[parent.seq_id]
        child = Sequence(seq_id, Request(seq_id, 0, parent.prompt_len, final_len - parent.prompt_len))
        self.log.append(f"fork({parent}, {child})")
        self.memory.perform(self.policy.fork(parent, child))
        self.resident[seq_id] = child
        self.final_len[seq_id] = final_len
        self.family[seq_id] = self.family[parent.seq_id]
        self.tokens[seq_id] = list(self.tokens[parent.seq_id])
        self.stories.fork(parent.seq_id, seq_id)

    def _refork(self, parent: Sequence) -> None:
        tokens, family = self.tokens, self.family
        relatives = (seq for seq in self.resident.values() if family[seq.seq_id] == family[parent.seq_id])
        for child in relatives:
            if child is not parent and len(tokens[child.seq_id]) == len(tokens[parent.seq_id]):
                self.log.append(f"fork({parent}, {child})  # which is resident")
                self.memory.perform(self.policy.fork(parent, child))
                tokens[child.seq_id] = list(tokens[parent.seq_id])
                self.refused = None
                return

    def _move(self, seq: Sequence) -> None:
        source, target, tier = self.resident, self.swapped, Tier.HOST
        if seq.seq_id in self.swapped:
            source, target, tier = self.swapped, self.resident, Tier.DEVICE
        group = [other for other in source.values() if self.family[other.seq_id] == self.family[seq.seq_id]]
        for member in group:
            self._leave(member)
        answer = self._ask(f"move({group}, {tier.name})", lambda: self.policy.move(group, tier))
        if isinstance(answer, Grant):
            for member in group:
                target[member.seq_id] = source.pop(member.seq_id)
            self.refused = None
            if tier is Tier.DEVICE:
                self._computed(group)

    def _ask(self, call: str, ask: Callable[[], Answer]) -> Answer:
        """Put one question, check clauses 1 and 2 on the answer, and perform what it orders."""
        seqs = list(self.resident.values())
        before = state_of(self.policy, seqs)
        self.log.append(call)
        answer = ask()
        self.log[-1] = f"{call} -> {answer if isinstance(answer, Refusal) else 'granted'}"
        self.answers.append(answer)
        check_refusal(self.policy, before, seqs, answer)
        if isinstance(answer, Refusal):
            require(2, isinstance(ask(), Refusal), f"{call} was refused, and granted when asked again")
        else:
            self.memory.perform(answer.ops)
        return answer

    def _write(self, seqs: list[Sequence], num_tokens: int) -> None:
        """Every sequence computes its next tokens and stores their K and V."""
        slots: dict[int, int] = {}
        for seq in self.resident.values():
            for slot in set(slots_of(self.policy.table(seq))):
                slots[slot] = slots.get(slot, 0) + 1
        for seq in seqs:
            tokens = self.tokens[seq.seq_id]
            written = slots_of(self.policy.table(seq))[len(tokens) : len(tokens) + num_tokens]
            require(5, len(written) == num_tokens, f"the table of {seq} has no room for its {num_tokens} new tokens")
            require(5, all(slots[slot] == 1 for slot in written), f"{seq} writes to a slot that another one holds")
            new = [self.stories.token(seq.seq_id, len(tokens) + i) for i in range(num_tokens)]
            self.memory.write(self.policy.table(seq), len(tokens), new)
            tokens.extend(new)
        self._computed(seqs)

    def _computed(self, seqs: list[Sequence]) -> None:
        """From the next call on others may find what `seqs` store: whoever was refused may ask again."""
        stored = self._stored()
        for seq in seqs:
            self.stories.computed(seq.seq_id, stored)
        if self.policy.caches_prefixes:
            self.refused = None

    def _stored(self) -> Slots:
        """The slots in which every resident sequence stores its tokens."""
        seqs = self.resident.values()
        return {seq.seq_id: slots_of(self.policy.table(seq))[: len(self.tokens[seq.seq_id])] for seq in seqs}

    def _check(self) -> None:
        check_conservation(self.policy.usage())
        self._check_own()
        if not self.policy.shares:
            check_disjoint(self.policy, list(self.resident.values()))
        stored: set[int] = set()
        for seq in self.resident.values():
            tokens, table = self.tokens[seq.seq_id], self.policy.table(seq)
            require(5, self.memory.read(table, len(tokens)) == tokens, f"{seq} does not read back its own tokens")
            stored.update(slots_of(table)[: len(tokens)])
        live = self.policy.usage().live
        require(4, live == len(stored), f"usage() says {live} live slots, the sequences store {len(stored)}")
        if self.refused:
            answer = copy.deepcopy(self.policy).admit(*self.refused)
            require(2, isinstance(answer, Refusal), f"admit{self.refused} was refused, and now granted with no release")
        self.answers.append(state_of(self.policy, list(self.resident.values())))

    def _check_own(self) -> None:
        try:
            self.policy.check()
        except AssertionError as error:
            raise ClauseBroken(10, f"check() failed: {error}") from error
