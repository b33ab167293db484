"""Puts questions to a policy, and checks the clauses that one answer can break."""

from collections.abc import Callable
from typing import TypeVar

from testbed.contract.clauses import check_answer, check_answers, require, state_of
from testbed.contract.steps import check_horizon, check_promised, check_steps, twin_of
from testbed.contract.witness import Witness
from testbed.core.batch import Batch
from testbed.core.sequence import Sequence
from testbed.core.slots import DEVICE, Answer, Answers, Grant, Refusal
from testbed.memory.policy import MemoryPolicy

PolicyFactory = Callable[[], MemoryPolicy]
Question = Callable[[MemoryPolicy], object]
A = TypeVar("A", Answer, Answers)


class Questions:
    """A policy and its witness; `log` says what it was asked and `answers` what it said, for clause 9.

    refused is the question that was refused last, while nothing has changed that could end the refusal. A run that is
    not `thorough` only fills `answers`.
    """

    def __init__(self, factory: PolicyFactory, max_len: int, thorough: bool) -> None:
        self.policy = factory()
        self.witness = Witness(self.policy)
        self.max_len = max_len
        self.thorough = thorough
        self.lengths: dict[int, int] = {}
        self.prefix = 0
        self.refused: tuple[str, Question] | None = None
        self.log: list[str] = []
        self.answers: list[object] = []
        self._factory = factory
        if self.policy.reads_output_len:
            self.policy.foresee(self.lengths)

    def fresh(self) -> MemoryPolicy:
        """Another such policy, whose pool is empty."""
        policy = self._factory()
        if policy.reads_output_len:
            policy.foresee(self.lengths)
        if self.prefix:
            policy.register_prefix(self.prefix)
        return policy

    def register(self, num_tokens: int) -> None:
        """Register a prefix, if an empty pool can hold it."""
        self.log.append(f"register_prefix({num_tokens})")
        try:
            self.policy.register_prefix(num_tokens)
        except ValueError as error:
            self.log[-1] += f"  # {error}"
        else:
            self.prefix = num_tokens
            self.witness.registered(num_tokens)

    def admit(self, seqs: list[Sequence], num_tokens: int, told: str) -> Answers:
        """First room: clauses 1, 2, 3, 8 and 10."""
        name = f"admit({seqs}, {num_tokens}){told}"
        certain = self.witness.certain_hit(seqs[0])
        answers = self._ask(name, lambda policy: policy.admit(seqs, num_tokens))
        check_answers(name, answers, len(seqs))
        if isinstance(answers, Refusal):
            if self.thorough:
                self._check_never(name, answers, lambda policy: policy.admit(seqs, num_tokens))
            return answers
        most = max(num_tokens, seqs[0].prompt_len)
        found = answers[0].num_cached
        for seq, grant in zip(seqs, answers, strict=True):
            require(8, grant.num_cached <= most, f"{grant.num_cached} of {most} tokens of {seq} are said to be cached")
        require(8, found >= certain, f"{name} found {found} tokens, but {certain} are held by others")
        whole = found >= self.prefix or not seqs[0].prefix
        require(8, whole, f"{name} found {found} tokens of a registered prefix of {self.prefix}")
        self._perform(answers)
        return answers

    def extend(self, batch: Batch, num_tokens: int) -> Answer:
        """More room for all members: clauses 1, 2, 6, 7 and 10."""
        name = f"extend(batch of {list(batch)}, {num_tokens})"
        seqs = list(self.witness.resident.values())
        horizon = check_horizon(self.policy, batch, seqs, self.max_len) if self.thorough else 0
        twin, members = twin_of(self.policy, batch, seqs) if self.thorough else (self.policy, batch)
        name += f"  # horizon {horizon}" if horizon else ""
        answer = self._ask(name, lambda policy: policy.extend(batch, num_tokens))
        check_answer(name, answer)
        if isinstance(answer, Grant):
            self._perform([answer])
            batch.extend(num_tokens)
        if self.thorough:
            check_promised(horizon, num_tokens, answer)
            check_steps(twin, members, num_tokens, answer, self.policy.usage())
        return answer

    def move(self, seqs: list[Sequence], tier: str, *, alone: bool) -> Answer:
        """To another tier, where nobody else is if `alone`: clauses 1, 2, 3 and 10."""
        name = f"move({seqs}, {tier!r})"
        answer = self._ask(name, lambda policy: policy.move(seqs, tier))
        check_answer(name, answer)
        if alone and isinstance(answer, Refusal) and self.thorough:
            policy = self.fresh()
            admitted = not isinstance(policy.admit(seqs, seqs[0].room), Refusal)
            room = admitted and not isinstance(policy.move(seqs, tier), Refusal)
            require(3, not room, f"{name} was refused, though nobody is there and an empty tier has room")
        if isinstance(answer, Grant):
            sources = {move.source for move in answer.ops.moves} - {tier}
            known = len(sources) <= 1 and (tier == DEVICE or sources <= {DEVICE})
            require(10, known, f"{name} orders moves from {sorted(sources)}")
            self._perform([answer])
            self.refused = None
        return answer

    def check(self) -> None:
        """All clauses that hold at any time, and clause 2 for who was refused."""
        self.answers.append(state_of(self.policy, list(self.witness.resident.values())))
        if not self.thorough:
            return
        self.witness.check_usage()
        try:
            self.policy.check()
        except AssertionError as error:
            require(10, False, f"check() failed: {error}")
        if self.refused:
            name, ask = self.refused
            still = isinstance(ask(self.policy), Refusal)  # which changes nothing: clause 1
            require(2, still, f"{name} was refused, and now granted with no release")

    def _ask(self, name: str, ask: Callable[[MemoryPolicy], A]) -> A:
        """Put one question, check clauses 1 and 2 on the answer."""
        seqs = list(self.witness.resident.values())
        before = state_of(self.policy, seqs) if self.thorough else None
        self.log.append(name)
        answer = ask(self.policy)
        self.log[-1] += f" -> {answer}" if isinstance(answer, Refusal) else ""
        self.answers.append(answer)
        if isinstance(answer, Refusal) and self.thorough:
            require(1, state_of(self.policy, seqs) == before, f"{name} was refused and changed the policy's state")
            require(2, isinstance(ask(self.policy), Refusal), f"{name} was refused, and granted when asked again")
        return answer

    def _check_never(self, name: str, answer: Refusal, ask: Question) -> None:
        """Clause 3, and what clause 2 will be checked on."""
        fresh = ask(self.fresh())
        if answer is Refusal.NEVER:
            require(3, fresh is Refusal.NEVER, f"{name} said NEVER, but an empty pool has room")
        else:
            require(3, not isinstance(fresh, Refusal), f"{name} says LATER, but an empty pool says no too")
        self.refused = name, ask

    def _perform(self, grants: list[Grant]) -> None:
        for grant in grants:
            self.witness.memory.perform(grant.ops)
