"""Carries out calls on a policy as a scheduler and an engine would, and checks every clause after each."""

import copy
from collections.abc import Callable, Iterable
from itertools import count
from typing import TypeVar

from testbed.contract.calls import Admit, AdmitAll, Call, Extend, Fork, Join, Move, Refork, Release, Step
from testbed.contract.clauses import (
    ClauseBroken,
    check_all_returned,
    check_conservation,
    check_horizon,
    check_never,
    check_refusal,
    check_steps,
    require,
    state_of,
)
from testbed.contract.witness import Witness
from testbed.core.batch import Batch
from testbed.core.request import Request
from testbed.core.sequence import OracleError, Sequence
from testbed.core.slots import Answer, Answers, Grant, Refusal, Tier
from testbed.memory.policy import MemoryPolicy

PolicyFactory = Callable[[], MemoryPolicy]
A = TypeVar("A", Answer, Answers)


class Harness:
    """A policy, a witness of what it holds, and the batch that decodes.

    `refused` is the admission that was refused last, if nothing has changed since that could end the refusal.
    """

    def __init__(self, factory: PolicyFactory) -> None:
        self.factory = factory
        self.policy = factory()
        self.batch = Batch()
        self.witness = Witness(self.policy)
        self.refused: tuple[str, Callable[[MemoryPolicy], object]] | None = None
        self.log: list[str] = []
        self.answers: list[object] = []
        self._seq_id = count()

    def run(self, calls: Iterable[Call]) -> list[object]:
        """Carry out all calls, then release everything; the visible history, for clause 9."""
        try:
            for call in calls:
                self._carry_out(call)
                self._check()
            for seq in self._held():
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
        resident, held = list(self.witness.resident.values()), self._held()
        match call:
            case Admit():
                self._admit(call)
            case AdmitAll():
                self._admit_all(call)
            case Step(num_tokens):
                self._step(num_tokens)
            case Extend(mask, num_tokens):
                self._extend(mask, num_tokens)
            case Join(pick) if resident:
                self._join(resident[pick % len(resident)])
            case Release(pick) if held:
                self._release(held[pick % len(held)])
            case Fork(pick) if resident and self.policy.shares:
                self._fork(resident[pick % len(resident)])
            case Refork(pick) if resident and self.policy.shares:
                self._refork(resident[pick % len(resident)])
            case Move(pick) if held and self.policy.moves_tiers:
                self._move(held[pick % len(held)])

    def _held(self) -> list[Sequence]:
        return [*self.witness.resident.values(), *self.witness.swapped.values()]

    def _admit(self, call: Admit) -> None:
        seq = self._sequence(call)
        num_tokens = min(call.chunk or call.prompt_len, call.prompt_len)
        told = f"  # {call.shared} tokens of story {call.story}" if call.shared else ""
        name = f"admit({seq}, {num_tokens}){told}"

        def ask(policy: MemoryPolicy) -> Answer:
            return policy.admit(seq, num_tokens)

        answer = self._ask(name, ask)
        if isinstance(answer, Refusal):
            check_never(name, answer, ask(self.factory()))
            self.refused = name, ask
        else:
            self._admitted(seq, call, seq.seq_id, answer, num_tokens)

    def _admit_all(self, call: AdmitAll) -> None:
        """A group that comes back after recompute: its sequences are computed one after another."""
        num_tokens = call.prompt.prompt_len + min(call.num_generated, call.prompt.output_len)
        first = self._sequence(call.prompt)
        seqs = [first, *(self._sequence(call.prompt, first) for _ in range(call.num_seqs - 1))]
        name = f"admit_all({seqs}, {num_tokens})"

        def ask(policy: MemoryPolicy) -> Answers:
            return policy.admit_all(seqs, num_tokens)

        answer = self._ask(name, ask)
        if isinstance(answer, Refusal):
            if answer is Refusal.NEVER:
                check_never(name, answer, ask(self.factory()))
            self.refused = name, ask
            return
        for seq, grant in zip(seqs, answer, strict=True):
            self._admitted(seq, call.prompt, first.seq_id, grant, num_tokens)

    def _sequence(self, call: Admit, sibling: Sequence | None = None) -> Sequence:
        """A new sequence; it has the prompt of its sibling, if any."""
        seq_id, stories = next(self._seq_id), self.witness.stories
        ids = stories.fork(sibling.seq_id, seq_id) if sibling else stories.tell(seq_id, call)
        request = Request(seq_id, 0, call.prompt_len, call.output_len, prompt_ids=ids)
        return Sequence(seq_id, request, oracle=self.policy.reads_output_len)

    def _admitted(self, seq: Sequence, call: Admit, family: int, grant: Grant, num_tokens: int) -> None:
        """The sequence computes what it was admitted for."""
        # The last token is computed even if it is cached: it yields the next output token.
        known = min(grant.num_cached, max(num_tokens, seq.prompt_len) - 1)
        self.witness.admitted(seq, call.prompt_len + call.output_len, family, grant.num_cached, known)
        self._write([seq], max(num_tokens, grant.num_cached) - known)

    def _step(self, num_tokens: int) -> None:
        if not (num_tokens := min(num_tokens, self.witness.room(list(self.batch)))):
            return
        horizon = check_horizon(self.policy, self.batch, num_tokens)
        twin, members = copy.deepcopy((self.policy, self.batch))
        name = f"extend(batch of {list(self.batch)}, {num_tokens})  # horizon {horizon}"
        answer = self._ask(name, lambda policy: policy.extend(self.batch, num_tokens))
        check_steps(twin, members, num_tokens, answer, self.policy.usage())
        if isinstance(answer, Grant):
            self.batch.advance(num_tokens)
            self._write(list(self.batch), num_tokens)

    def _extend(self, mask: int, num_tokens: int) -> None:
        free = [seq for seq in self.witness.resident.values() if seq.seq_id not in self.batch.sequences]
        seqs = [seq for i, seq in enumerate(free) if mask >> i & 1]
        if not (num_tokens := min(num_tokens, self.witness.room(seqs))):
            return
        answer = self._ask(f"extend({seqs}, {num_tokens})", lambda policy: policy.extend(seqs, num_tokens))
        if isinstance(answer, Grant):
            self._write(seqs, num_tokens)

    def _join(self, seq: Sequence) -> None:
        if seq.seq_id in self.batch.sequences:
            self._leave(seq)
        elif self._has_prompt(seq):
            self.log.append(f"batch.join({seq})")
            self.batch.join(seq, self.witness.length(seq))

    def _has_prompt(self, seq: Sequence) -> bool:
        """Only sequences whose prompt is computed are forked, or decode in lockstep."""
        return self.witness.length(seq) >= seq.prompt_len

    def _leave(self, seq: Sequence) -> None:
        if seq.seq_id in self.batch.sequences:
            self.log.append(f"batch.leave({seq})")
            self.batch.leave(seq, self.witness.length(seq))

    def _release(self, seq: Sequence) -> None:
        self._leave(seq)
        self.log.append(f"release({seq})")
        self.policy.release(seq)
        self.witness.released(seq)
        self.refused = None

    def _fork(self, parent: Sequence) -> None:
        if not self._has_prompt(parent):
            return
        seq_id = next(self._seq_id)
        child = Sequence(seq_id, Request(seq_id, 0, parent.prompt_len, 1))
        self.log.append(f"fork({parent}, {child})")
        self.witness.memory.perform(self.policy.fork(parent, child))
        self.witness.stories.fork(parent.seq_id, seq_id)
        self.witness.forked(parent, child)

    def _refork(self, parent: Sequence) -> None:
        length = self.witness.length(parent)
        for child in self.witness.relatives(parent):
            if child is not parent and self.witness.length(child) == length:
                self.log.append(f"fork({parent}, {child})  # which is resident")
                self.witness.memory.perform(self.policy.fork(parent, child))
                self.witness.forked(parent, child)
                self.refused = None
                return

    def _move(self, seq: Sequence) -> None:
        tier = Tier.DEVICE if seq.seq_id in self.witness.swapped else Tier.HOST
        group = self.witness.relatives(seq)
        for member in group:
            self._leave(member)
        answer = self._ask(f"move({group}, {tier.name})", lambda policy: policy.move(group, tier))
        if isinstance(answer, Grant):
            self.witness.moved(group, tier)
            self.refused = None

    def _ask(self, name: str, ask: Callable[[MemoryPolicy], A]) -> A:
        """Put one question, check clauses 1 and 2 on the answer, and perform what it orders."""
        seqs = list(self.witness.resident.values())
        before = state_of(self.policy, seqs)
        self.log.append(name)
        answer = ask(self.policy)
        self.log[-1] = f"{name} -> {answer if isinstance(answer, Refusal) else 'granted'}"
        self.answers.append(answer)
        check_refusal(self.policy, before, seqs, answer)
        if isinstance(answer, Refusal):
            require(2, isinstance(ask(self.policy), Refusal), f"{name} was refused, and granted when asked again")
        else:
            for grant in answer if isinstance(answer, list) else [answer]:
                self.witness.memory.perform(grant.ops)
        return answer

    def _write(self, seqs: list[Sequence], num_tokens: int) -> None:
        """What is computed may be published: whoever was refused may ask again."""
        self.witness.write(seqs, num_tokens)
        if self.policy.caches_prefixes:
            self.refused = None

    def _check(self) -> None:
        check_conservation(self.policy.usage())
        try:
            self.policy.check()
        except AssertionError as error:
            raise ClauseBroken(10, f"check() failed: {error}") from error
        self.witness.check()
        if self.refused:
            name, ask = self.refused
            answer = ask(copy.deepcopy(self.policy))
            require(2, isinstance(answer, Refusal), f"{name} was refused, and now granted with no release")
        self.answers.append(state_of(self.policy, list(self.witness.resident.values())))
