"""Carries out calls on a policy as a scheduler and an engine would, and has every clause checked after each."""

from collections.abc import Callable, Iterable

from testbed.contract.clauses import ClauseBroken, check_all_returned, check_traits, overrides
from testbed.contract.histories import Act, Admit, Call
from testbed.contract.moves import Group, Moves
from testbed.contract.questions import PolicyFactory, check_max_seq_len
from testbed.core.errors import OracleError
from testbed.core.request import Incoming
from testbed.core.sequence import Sequence
from testbed.core.slots import DEVICE, HOST
from testbed.memory.policy import PoolSpec

# Which groups can, by verb, and what they do then.
ACTS: dict[str, tuple[Callable[[Group], bool], Callable[[Moves, Group, int], object]]] = {
    "extend": (lambda group: group.tier == DEVICE and not group.in_batch, Moves.extend),
    "join": (lambda group: group.decodes, lambda moves, group, _: moves.join(group)),
    "refork": (lambda group: group.decodes and len(group.sequences) > 1, Moves.refork),
    "move": (lambda group: group.tier == HOST or group.decodes, lambda moves, group, _: moves.move(group)),
    "preempt": (lambda group: group.tier == DEVICE, lambda moves, group, _: moves.preempt(group)),
    "shrink": (lambda group: group.tier == DEVICE and len(group.sequences) == 1, Moves.shrink),
    "return": (lambda group: group.tier is None, Moves.admit),
    "release": (lambda group: True, lambda moves, group, _: moves.release(group)),
}
SAME_PLAN = ("extend", "return")  # what a plan may have besides admissions


class Harness(Moves):
    """Makes the moves that the calls describe, where they make sense."""

    def __init__(self, factory: PolicyFactory, pool: PoolSpec, thorough: bool = True) -> None:
        super().__init__(factory, pool, thorough)
        self._max_len = pool.max_len
        self._num_requests = self._num_seqs = 0

    def run(self, calls: Iterable[Call]) -> list[object]:
        """Carry out all calls, then release everything; the visible history, for clause 9."""
        try:
            check_traits(self.policy)
            for call in calls:
                self._carry_out(call)
                self.questions.check()
            self.run_plan()
            for group in list(self.groups.values()):
                self.release(group)
                self.questions.check()
            while self.witness.memory.in_transit:
                self.land(0)
                self.questions.check()
            check_all_returned(self.policy.usage(), len(self.witness.pinned))
        except ClauseBroken:
            raise
        except Exception as error:
            what = str(error) if isinstance(error, OracleError) else f"{type(error).__name__}: {error}"
            raise ClauseBroken(10, f"the last call raised {what}") from error
        return self.questions.answers

    def _carry_out(self, call: Call) -> None:
        if not (isinstance(call, Admit) or (isinstance(call, Act) and call.verb in SAME_PLAN)):
            self.run_plan()
        match call:
            case Admit():
                self._admit_new(call)
            case Act("register", _, num_tokens):
                if num_tokens and not self._num_requests and overrides(self.policy, "register_prefix"):
                    self.questions.register(num_tokens)
            case Act("flood"):
                self._flood()
            case Act("land", pick):
                self.land(pick)
            case Act("step", _, num_tokens):
                self.step(num_tokens)
            case Act(verb, pick, number) if verb in ACTS:
                can, act = ACTS[verb]
                groups = list(filter(can, self.groups.values()))
                if groups:
                    act(self, groups[-1 - pick % len(groups)], number)

    def _admit_new(self, call: Admit) -> bool:
        registered_prefix = self.questions.registered_prefix if call.provided else 0
        prompt_len = max(call.prompt_len, registered_prefix)
        ids = range(self._num_seqs, self._num_seqs + call.num_seqs)
        prompt = self.witness.stories.tell(list(ids), call, prompt_len, registered_prefix)
        request = Incoming(
            self._num_requests, 0, prompt_len, call.num_seqs, registered_prefix=registered_prefix, prompt_ids=prompt
        )
        self._num_requests += 1
        self._num_seqs += call.num_seqs
        final_len = min(prompt_len + call.output_len, self._max_len)
        group = Group(request, [Sequence(i, request) for i in ids], final_len, prompt_len)
        self.questions.lengths[request.request_id] = final_len - prompt_len
        self.witness.tokens.update((seq.seq_id, list(prompt)) for seq in group.sequences)
        group.note = f"  # {call.shared} tokens of story {call.story}" if call.shared else ""
        if call.waits:
            self.questions.load(group.first, prompt_len, group.note)
            return False
        admitted = self.admit(group, call.chunk)
        if self.questions.thorough and not registered_prefix:
            check_max_seq_len(self.questions.fresh(), request, group.final_len)
        if admitted:
            self.groups[request.request_id] = group
        return admitted

    def _flood(self) -> None:
        before, num_tokens = set(self.groups), self._max_len // 2
        while num_tokens:
            num_tokens = num_tokens if self._admit_new(Admit(num_tokens, 1)) else num_tokens // 2
        self.run_plan()
        for request_id in [i for i in self.groups if i not in before]:
            self.release(self.groups[request_id])
