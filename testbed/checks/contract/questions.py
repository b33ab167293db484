"""Puts questions to a policy, and checks the clauses that one answer can break."""

from collections.abc import Callable
from types import MappingProxyType
from typing import Any, TypeVar

from testbed.checks.contract.clauses import (
    ClauseBroken,
    State,
    changed_in,
    check_answer,
    check_answers,
    require,
    state_of,
)
from testbed.checks.contract.hit_counts import CountedHits
from testbed.checks.contract.steps import (
    check_guaranteed_steps,
    check_promised,
    check_steps,
    twin_of,
)
from testbed.checks.contract.witness import Witness
from testbed.core.request import Incoming
from testbed.core.sequence import Batch, Sequence, passing_batch
from testbed.core.slots import DEVICE, Answer, Answers, CacheHit, Grant, Refusal
from testbed.memory.capabilities import Capabilities, capabilities_of
from testbed.memory.policy import UNBOUNDED_LEN, MemoryPolicy, PoolSpec
from testbed.run.oracles import with_lengths

MakePolicy = Callable[[PoolSpec], MemoryPolicy]
Question = Callable[[Capabilities, CacheHit | None], object]
A = TypeVar("A", Answer, Answers)


class Questions:
    """A policy and its witness; `log` has the calls and `answers` their results, for clause 9.

    lengths: the output lengths of the requests, which an oracle reads. refused is the question that
    was refused last, while nothing has changed that could end the refusal. A run that is not
    `thorough` only fills `answers`.
    """

    def __init__(self, make: MakePolicy, pool: PoolSpec, thorough: bool) -> None:
        self.lengths: dict[int, int] = {}
        self._seen_lengths = MappingProxyType(self.lengths)
        self._make = with_lengths(make, self._seen_lengths)
        self._pool = pool
        self.registered_prefix = 0
        self.memory = self.fresh()
        self.policy = self.memory.policy
        self.witness = Witness(self.memory, self.memory.pool_in_slots(pool))
        self.max_len = pool.max_len
        self.thorough = thorough
        self.refused: tuple[str, Question] | None = None
        self.hits = CountedHits()
        self.log: list[str] = []
        self.answers: list[object] = []

    def fresh(self) -> Capabilities:
        """A new policy of the same kind, with the registered prefix."""
        memory = capabilities_of(self._make(self._pool))
        if self.registered_prefix:
            _register(memory, self.registered_prefix)
        return memory

    def register(self, num_tokens: int) -> None:
        """Register a prefix, if it fits an empty pool."""
        self.log.append(f"register_prefix({num_tokens})")
        try:
            _register(self.memory, num_tokens)
        except ValueError as error:
            self.log[-1] += f"  # {error}"
        else:
            self.registered_prefix = num_tokens
            self.witness.registered(num_tokens)

    def admit(
        self, seqs: list[Sequence], num_tokens: int, most: int, note: str, hit: CacheHit
    ) -> Answers:
        """First slots for num_tokens of their `most` tokens each, of which `hit` was found: clauses
        1, 2, 3, 8 and 10.
        """
        name, first = f"admit({seqs}, {num_tokens}){note}", seqs[0]
        tables = self.witness.tables()
        certain = self.witness.stories.certain_hit(first.seq_id, first.prompt_len, tables)
        listed = self.witness.listed_hit(first, tables)

        def ask(memory: Capabilities, hit: CacheHit | None = None) -> Answers:
            own_hit = memory.lookup(first) if hit is None else hit
            return memory.admit(seqs, num_tokens, own_hit)

        answers = self._ask(name, ask, hit, len(seqs))
        if isinstance(answers, Refusal):
            if self.thorough:
                self._check_refused(name, ask, answers)
            return answers
        looked_up, num_stored = hit.num_cached(num_tokens), max(certain, listed)
        require(
            8,
            looked_up >= num_stored,
            f"lookup({first}) found {looked_up} tokens, but {num_stored} are stored",
        )
        self._check_found(name, seqs, answers, most, certain)
        return answers

    def _check_found(
        self, name: str, seqs: list[Sequence], answers: list[Grant], most: int, certain: int
    ) -> None:
        """Clause 8: what is reported as cached is stored, is no more than `most` tokens, and no
        less than is certain to be found.
        """
        num_found = answers[0].num_cached
        self.hits.check(self.memory, seqs, num_found)
        for seq, grant in zip(seqs, answers, strict=True):
            require(
                8,
                grant.num_cached <= most,
                f"{grant.num_cached} of {most} tokens of {seq} are reported as cached",
            )
        reported = f"{name} found {num_found} tokens"
        require(8, num_found >= certain, f"{reported}, but others have {certain}")
        has_prefix = num_found >= self.registered_prefix or not seqs[0].registered_prefix
        require(8, has_prefix, f"{reported} of a registered prefix of {self.registered_prefix}")

    def _check_refused(self, name: str, ask: Any, answer: Refusal) -> None:
        """A request that is refused for ever does not fit an empty pool, and one that is refused
        for now does.
        """
        self.refused, fresh = (name, ask), ask(self.fresh())
        if answer.is_final:
            is_final = isinstance(fresh, Refusal) and fresh.is_final
            require(3, is_final, f"{name} answered NEVER, but an empty pool has the slots")
        refuses = f"{name} answered {answer.name}, but an empty pool refuses too"
        require(3, answer.is_final or not isinstance(fresh, Refusal), refuses)
        waits = self.witness.resident or self.witness.memory.in_transit
        refuses = f"{name} answered {answer.name}, and no slot is held"
        require(3, answer.is_final or bool(waits), refuses)

    def load(self, seq: Sequence, num_tokens: int, note: str, hit: CacheHit) -> bool:
        """Loads the blocks of a sequence that lower tiers have; whether there were slots: clauses
        1, 2, 3 and 10.
        """
        name = f"load({seq}, {num_tokens}){note}"

        def ask(memory: Capabilities, hit: CacheHit | None = None) -> Answer:
            assert memory.transfers is not None
            own_hit = memory.lookup(seq) if hit is None else hit
            return memory.transfers.load(seq, num_tokens, own_hit)

        answer = self._ask(name, ask, hit)
        if isinstance(answer, Refusal):
            require(
                3,
                answer is Refusal.LATER,
                f"{name} answered {answer}: a load is granted, or refused for now",
            )
            self.refused = name, ask
            return False
        return True

    def extend(self, batch: Batch, num_tokens: int) -> Answer:
        """More slots for all members: clauses 1, 2, 6, 7 and 10."""
        name = f"extend(batch of {list(batch)}, {num_tokens})"
        seqs = list(self.witness.resident.values())
        shared = [*(seq.prompt_ids for seq in seqs), self._seen_lengths]
        guaranteed_steps, twin, members = 0, self.memory, batch
        if self.thorough:
            guaranteed_steps = check_guaranteed_steps(self.memory, batch, shared, self.max_len)
            twin, members = twin_of(self.memory, batch, shared)
        name += f"  # guaranteed_steps {guaranteed_steps}" if guaranteed_steps else ""
        answer = self._ask(name, lambda memory, _: memory.policy.extend(batch, num_tokens))
        if isinstance(answer, Grant):
            batch.extend(num_tokens)
            batch.changes += bool(answer.ops.copies)
            self.refused = None if answer.ends_refusals else self.refused
        if self.thorough:
            self.witness.check_alone(batch, num_tokens if isinstance(answer, Grant) else 0)
            check_promised(guaranteed_steps, num_tokens, answer)
            if num_tokens == 1 or self.memory.layered is None:
                check_steps(twin, members, num_tokens, answer, self.policy.usage())
        return answer

    def move(self, seqs: list[Sequence], tier: str, *, alone: bool) -> Answer:
        """To another tier, which is empty if `alone`: clauses 1, 2, 3 and 10."""
        name = f"move({seqs}, {tier!r})"
        answer = self._ask(name, lambda memory, _: _move(memory, seqs, tier))
        if alone and isinstance(answer, Refusal) and self.thorough:
            fresh = self.fresh()
            admitted = not isinstance(fresh.policy.admit(seqs, seqs[0].num_slots), Refusal)
            moved = admitted and not isinstance(_move(fresh, seqs, tier), Refusal)
            require(
                3,
                not moved,
                f"{name} was refused, though the pool is empty and the tier has the slots",
            )
        if isinstance(answer, Grant):
            sources = {move.source for move in answer.ops.moves} - {tier}
            one_source = len(sources) <= 1 and (tier == DEVICE or sources <= {DEVICE})
            require(10, one_source, f"{name} orders moves from {sorted(sources)}")
            self.refused = None
        return answer

    def check(self) -> None:
        """All clauses that apply at any time, and clause 2 for the refused request."""
        self.answers.append(state_of(self.memory, list(self.witness.resident.values())))
        if not self.thorough:
            return
        self.witness.check_usage()
        try:
            self.policy.check()
        except AssertionError as error:
            require(10, False, f"check() failed: {error}")
        if self.refused:
            name, ask = self.refused
            still = isinstance(ask(self.memory, None), Refusal)  # which changes nothing: clause 1
            granted = f"{name} was refused, and now granted with no release"
            require(2, still, granted + _of_lease(self.log[-1]))

    def _check_unchanged(self, name: str, seqs: list[Sequence], before: State) -> None:
        """Clause 1, after a refusal."""
        after = state_of(self.memory, seqs)
        if after != before:
            raise ClauseBroken(1, f"{name} was refused and changed {changed_in(before, after)}")

    def _ask(
        self,
        name: str,
        ask: Callable[[Capabilities, CacheHit | None], A],
        hit: CacheHit | None = None,
        num_seqs: int = 0,
    ) -> A:
        """The answer, a list if num_seqs sequences are admitted, after its ops were performed:
        clauses 1, 2, 10.
        """
        seqs = list(self.witness.resident.values())
        before = state_of(self.memory, seqs) if self.thorough else None
        self.log.append(name)
        answer = ask(self.memory, hit)
        self.log[-1] += f" -> {answer}" if isinstance(answer, Refusal) else ""
        self.answers.append(answer)
        if isinstance(answer, Refusal) and before is not None:
            self._check_unchanged(name, seqs, before)
            require(
                2,
                isinstance(ask(self.memory, None), Refusal),
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


def _of_lease(call: str) -> str:
    """A note on a refusal that ended at this call."""
    return " (a release with a lease gives nothing back before end_lease)" * ("Lease(" in call)


def _register(memory: Capabilities, num_tokens: int) -> None:
    assert memory.registers_prefixes is not None
    memory.registers_prefixes.register_prefix(num_tokens)


def _move(memory: Capabilities, seqs: list[Sequence], tier: str) -> Answer:
    return memory.move(seqs, tier)


def check_max_seq_len(memory: Capabilities, request: Incoming, final_len: int) -> None:
    """The empty policy can serve the request to its end exactly if max_seq_len() is at least its
    final length.
    """
    longest: object = memory.policy.max_seq_len(request.prompt_len, request.num_seqs)
    require(3, type(longest) is int, f"max_seq_len() is {longest!r}")
    assert isinstance(longest, int)
    if longest >= UNBOUNDED_LEN:
        return
    served = is_served_alone(memory, request, final_len)
    case = f"{request.num_seqs} x {final_len} tokens, {request.prompt_len} of them prompt,"
    claim = f"max_seq_len({request.prompt_len}, {request.num_seqs}) is {longest}"
    require(3, served or final_len > longest, f"{case} do not fit an empty pool, but {claim}")
    require(3, not served or final_len <= longest, f"{case} fit an empty pool, but {claim}")


def is_served_alone(memory: Capabilities, request: Incoming, final_len: int) -> bool:
    """True if the request can be admitted, forked, and extended to its end."""
    policy, seqs = memory.policy, [Sequence(i, request) for i in range(request.num_seqs)]
    if memory.layered is not None:  # it must be able to come back as a whole
        return not isinstance(policy.admit(seqs, final_len), Refusal)
    admitted = seqs if memory.forks is None else seqs[:1]
    answers = policy.admit(admitted, request.prompt_len)
    check_answers("admit() of an empty pool", answers, len(admitted))
    if isinstance(answers, Refusal):
        return False
    for seq in admitted:
        seq.num_slots = request.prompt_len
    if memory.publishes is not None:
        memory.publishes.publish(seqs[0], request.prompt_len)
    seqs[0].num_stored = request.prompt_len
    for child in seqs[1:]:
        memory.fork(seqs[0], child)
        child.num_slots = child.num_stored = request.prompt_len
    answer = policy.extend(passing_batch(seqs), final_len - request.prompt_len)
    check_answer("extend() in an empty pool", answer)
    return not isinstance(answer, Refusal)
