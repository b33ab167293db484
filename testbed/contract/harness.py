"""Carries out calls on a policy as a scheduler and an engine would, and has every clause checked after each."""

from collections.abc import Callable, Iterable

from testbed.contract.alone import check_longest
from testbed.contract.calls import (
    Admit,
    Call,
    Extend,
    Flood,
    Join,
    Move,
    Preempt,
    Refork,
    Register,
    Release,
    Return,
    Step,
)
from testbed.contract.clauses import ClauseBroken, check_all_returned, check_traits, overrides
from testbed.contract.group import Group
from testbed.contract.moves import Moves
from testbed.contract.questions import PolicyFactory
from testbed.core.foresight import OracleError
from testbed.core.request import Incoming
from testbed.core.sequence import Sequence
from testbed.core.slots import DEVICE, HOST


class Harness(Moves):
    """Makes the moves that calls ask for, where they make sense."""

    def __init__(self, factory: PolicyFactory, max_len: int, thorough: bool = True) -> None:
        super().__init__(factory, max_len, thorough)
        self._max_len = max_len
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
            check_all_returned(self.policy.usage(), len(self.witness.pinned))
        except ClauseBroken:
            raise
        except Exception as error:
            what = str(error) if isinstance(error, OracleError) else f"{type(error).__name__}: {error}"
            raise ClauseBroken(10, f"the last call raised {what}") from error
        return self.questions.answers

    def _carry_out(self, call: Call) -> None:
        if not isinstance(call, Admit | Return | Extend):  # these may belong to one plan
            self.run_plan()
        match call:
            case Register(num_tokens) if not self._num_requests and overrides(self.policy, "register_prefix"):
                self.questions.register(num_tokens)
            case Admit():
                self._admit_new(call)
            case Flood():
                self._flood()
            case Step(num_tokens):
                self.step(num_tokens)
            case Move(pick) if self.policy.moves_tiers:
                self._on(pick, [g for g in self.groups.values() if g.tier == HOST or g.decodes], self.move)
            case Extend(pick, num_tokens):
                idle = [g for g in self.groups.values() if g.tier == DEVICE and not g.in_batch]
                self._on(pick, idle, self.extend, num_tokens)
            case Join(pick):
                self._on(pick, [g for g in self.groups.values() if g.decodes], self.join)
            case Refork(pick, parent):
                many = [g for g in self.groups.values() if g.decodes and len(g.sequences) > 1]
                self._on(pick, many, self.refork, parent)
            case Preempt(pick):
                self._on(pick, [g for g in self.groups.values() if g.tier == DEVICE], self.preempt)
            case Return(pick, chunk):
                self._on(pick, [g for g in self.groups.values() if g.tier is None], self.admit, chunk)
            case Release(pick):
                self._on(pick, list(self.groups.values()), self.release)

    def _on(self, pick: int, groups: list[Group], act: Callable[..., object], *arguments: int) -> None:
        if groups:
            act(groups[-1 - pick % len(groups)], *arguments)

    def _admit_new(self, call: Admit) -> bool:
        """A request comes; whether it has room. It goes again if it has none."""
        prefix = self.questions.prefix if call.provided else 0
        prompt_len = max(call.prompt_len, prefix)
        ids = range(self._num_seqs, self._num_seqs + call.num_seqs)
        prompt = self.witness.stories.tell(list(ids), call, prompt_len, prefix)
        request = Incoming(self._num_requests, 0, prompt_len, call.num_seqs, prefix=prefix, prompt_ids=prompt)
        self._num_requests += 1
        self._num_seqs += call.num_seqs
        final_len = min(prompt_len + call.output_len, self._max_len)
        group = Group(request, [Sequence(i, request) for i in ids], final_len, prompt_len)
        self.questions.lengths[request.request_id] = final_len - prompt_len
        self.witness.tokens.update((seq.seq_id, list(prompt)) for seq in group.sequences)
        group.told = f"  # {call.shared} tokens of story {call.story}" if call.shared else ""
        admitted = self.admit(group, call.chunk)
        if self.questions.thorough and not prefix:
            check_longest(self.questions.fresh(), request, group.final_len)
        if admitted:
            self.groups[request.request_id] = group
        return admitted

    def _flood(self) -> None:
        before, num_tokens = set(self.groups), self._max_len // 2
        while num_tokens:
            if not self._admit_new(Admit(num_tokens, 1)):
                num_tokens //= 2
        self.run_plan()
        for request_id in [i for i in self.groups if i not in before]:
            self.release(self.groups[request_id])
