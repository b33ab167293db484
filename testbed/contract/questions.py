"""Puts questions to a policy, and checks the clauses that one answer can break."""

from collections.abc import Callable
from types import MappingProxyType
from typing import TypeVar

from testbed.contract.clauses import check_answer, check_answers, pool_of, require, state_of
from testbed.contract.steps import check_guaranteed_steps, check_promised, check_steps, twin_of
from testbed.contract.witness import Witness
from testbed.core.request import Incoming
from testbed.core.sequence import Batch, Sequence, passing_batch
from testbed.core.slots import DEVICE, Answer, Answers, Grant, Refusal
from testbed.memory.policy import UNBOUNDED_LEN, MemoryPolicy, PoolSpec

PolicyFactory = Callable[[], MemoryPolicy]
Question = Callable[[MemoryPolicy], object]
A = TypeVar("A", Answer, Answers)


class Questions:
    """A policy and its witness; `log` has the calls and `answers` their results, for clause 9.

    refused is the question that was refused last, while nothing has changed that could end the
    refusal. A run that is not `thorough` only fills `answers`.
    """

    def __init__(self, factory: PolicyFactory, pool: PoolSpec, thorough: bool) -> None:
        self._factory = factory
        self.lengths: dict[int, int] = {}
        self.registered_prefix = 0
        self.policy = self.fresh()
        self.witness = Witness(self.policy, pool_of(self.policy, pool))
        self.max_len = pool.max_len
        self.thorough = thorough
        self.refused: tuple[str, Question] | None = None
        self.log: list[str] = []
        self.answers: list[object] = []

    def fresh(self) -> MemoryPolicy:
        policy = self._factory()
        if policy.reads_output_len:
            policy.foresee(MappingProxyType(self.lengths))
        if self.registered_prefix:
            policy.register_prefix(self.registered_prefix)
        return policy

    def register(self, num_tokens: int) -> None:
        """Register a prefix, if it fits an empty pool."""
        self.log.append(f"register_prefix({num_tokens})")
        try:
            self.policy.register_prefix(num_tokens)
        except ValueError as error:
            self.log[-1] += f"  # {error}"
        else:
            self.registered_prefix = num_tokens
            self.witness.registered(num_tokens)

    def admit(self, seqs: list[Sequence], num_tokens: int, most: int, note: str) -> Answers:
        """First slots for num_tokens of their `most` tokens each: clauses 1, 2, 3, 8 and 10."""
        name, first = f"admit({seqs}, {num_tokens}){note}", seqs[0]
        certain = self.witness.stories.certain_hit(
            first.seq_id, first.prompt_len, self.witness.tables()
        )

        def ask(policy: MemoryPolicy) -> Answers:
            return policy.admit(seqs, num_tokens)

        answers = self._ask(name, ask, len(seqs))
        if isinstance(answers, Refusal):
            if self.thorough:
                self.refused, fresh = (name, ask), ask(self.fresh())
                if answers is Refusal.NEVER:
                    require(
                        3,
                        fresh is Refusal.NEVER,
                        f"{name} answered NEVER, but an empty pool has the slots",
                    )
                refuses = f"{name} answered {answers.name}, but an empty pool refuses too"
                require(3, answers is Refusal.NEVER or not isinstance(fresh, Refusal), refuses)
            return answers
        found = answers[0].num_cached
        for seq, grant in zip(seqs, answers, strict=True):
            require(
                8,
                grant.num_cached <= most,
                f"{grant.num_cached} of {most} tokens of {seq} are reported as cached",
            )
        require(8, found >= certain, f"{name} found {found} tokens, but others have {certain}")
        whole = found >= self.registered_prefix or not seqs[0].registered_prefix
        require(
            8,
            whole,
            f"{name} found {found} tokens of a registered prefix of {self.registered_prefix}",
        )
        return answers

    def load(self, seq: Sequence, num_tokens: int, note: str) -> bool:
        """What lower tiers have of a sequence is to be loaded; whether there were slots: clauses 1,
        2, 3 and 10.
        """
        name = f"load({seq}, {num_tokens}){note}"
        answer = self._ask(name, lambda policy: policy.load(seq, num_tokens))
        if isinstance(answer, Refusal):
            require(
                3,
                answer is Refusal.LATER,
                f"{name} answered {answer}: a load is granted, or refused for now",
            )
            self.refused = name, lambda policy: policy.load(seq, num_tokens)
            return False
        return True

    def extend(self, batch: Batch, num_tokens: int) -> Answer:
        """More slots for all members: clauses 1, 2, 6, 7 and 10."""
        name = f"extend(batch of {list(batch)}, {num_tokens})"
        seqs = list(self.witness.resident.values())
        guaranteed_steps = (
            check_guaranteed_steps(self.policy, batch, seqs, self.max_len) if self.thorough else 0
        )
        twin, members = twin_of(self.policy, batch, seqs) if self.thorough else (self.policy, batch)
        name += f"  # guaranteed_steps {guaranteed_steps}" if guaranteed_steps else ""
        answer = self._ask(name, lambda policy: policy.extend(batch, num_tokens))
        if isinstance(answer, Grant):
            batch.extend(num_tokens)
            self.refused = None if self.policy.returns_slots else self.refused
        if self.thorough:
            self.witness.check_alone(batch, num_tokens if isinstance(answer, Grant) else 0)
            check_promised(guaranteed_steps, num_tokens, answer)
            if num_tokens == 1 or not self.policy.returns_slots:
                check_steps(twin, members, num_tokens, answer, self.policy.usage())
        return answer

    def move(self, seqs: list[Sequence], tier: str, *, alone: bool) -> Answer:
        """To another tier, which is empty if `alone`: clauses 1, 2, 3 and 10."""
        name = f"move({seqs}, {tier!r})"
        answer = self._ask(name, lambda policy: policy.move(seqs, tier))
        if alone and isinstance(answer, Refusal) and self.thorough:
            policy = self.fresh()
            admitted = not isinstance(policy.admit(seqs, seqs[0].num_slots), Refusal)
            num_slots = admitted and not isinstance(policy.move(seqs, tier), Refusal)
            require(
                3,
                not num_slots,
                f"{name} was refused, though the pool is empty and the tier has the slots",
            )
        if isinstance(answer, Grant):
            sources = {move.source for move in answer.ops.moves} - {tier}
            known = len(sources) <= 1 and (tier == DEVICE or sources <= {DEVICE})
            require(10, known, f"{name} orders moves from {sorted(sources)}")
            self.refused = None
        return answer

    def check(self) -> None:
        """All clauses that apply at any time, and clause 2 for the refused request."""
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

    def _ask(self, name: str, ask: Callable[[MemoryPolicy], A], num_seqs: int = 0) -> A:
        """The answer, a list where num_seqs sequences are admitted, after its ops were performed:
        clauses 1, 2, 10.
        """
        seqs = list(self.witness.resident.values())
        before = state_of(self.policy, seqs) if self.thorough else None
        self.log.append(name)
        answer = ask(self.policy)
        self.log[-1] += f" -> {answer}" if isinstance(answer, Refusal) else ""
        self.answers.append(answer)
        if isinstance(answer, Refusal) and self.thorough:
            require(
                1,
                state_of(self.policy, seqs) == before,
                f"{name} was refused and changed the policy's state",
            )
            require(
                2,
                isinstance(ask(self.policy), Refusal),
                f"{name} was refused, and granted when repeated",
            )
        if num_seqs:
            check_answers(name, answer, num_seqs)
        else:
            check_answer(name, answer)
        for grant in answer if isinstance(answer, list) else [answer]:
            if isinstance(grant, Grant):
                self.witness.memory.perform(grant.ops)
        return answer


def check_max_seq_len(policy: MemoryPolicy, request: Incoming, final_len: int) -> None:
    """The empty policy can serve the request to its end exactly if max_seq_len() is at least its
    final length.
    """
    longest = policy.max_seq_len(request.prompt_len, request.num_seqs)
    require(3, type(longest) is int, f"max_seq_len() is {longest!r}")
    if longest >= UNBOUNDED_LEN:
        return
    served = is_served_alone(policy, request, final_len)
    case = f"{request.num_seqs} x {final_len} tokens, {request.prompt_len} of them prompt,"
    claim = f"max_seq_len({request.prompt_len}, {request.num_seqs}) is {longest}"
    require(3, served or final_len > longest, f"{case} do not fit an empty pool, but {claim}")
    require(3, not served or final_len <= longest, f"{case} fit an empty pool, but {claim}")


def is_served_alone(policy: MemoryPolicy, request: Incoming, final_len: int) -> bool:
    """Whether the request can be admitted, forked, and extended to its end."""
    seqs = [Sequence(i, request) for i in range(request.num_seqs)]
    if policy.returns_slots:  # it must be able to come back as a whole
        return not isinstance(policy.admit(seqs, final_len), Refusal)
    admitted = seqs[:1] if policy.shares else seqs
    answers = policy.admit(admitted, request.prompt_len)
    check_answers("admit() of an empty pool", answers, len(admitted))
    if isinstance(answers, Refusal):
        return False
    for seq in admitted:
        seq.num_slots = request.prompt_len
    policy.publish(seqs[0], request.prompt_len)
    seqs[0].num_stored = request.prompt_len
    for child in seqs[1:]:
        policy.fork(seqs[0], child)
        child.num_slots = child.num_stored = request.prompt_len
    answer = policy.extend(passing_batch(seqs), final_len - request.prompt_len)
    check_answer("extend() in an empty pool", answer)
    return not isinstance(answer, Refusal)
