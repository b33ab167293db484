"""Request-level batching (section 6.1, FasterTransformer): a batch starts and ends together."""

from typing import ClassVar

from testbed.core.errors import InputError, OracleError
from testbed.core.oracle_protocols import OutputLengths
from testbed.core.sequence import FINISHED, SequenceGroup
from testbed.core.slots import Refusal
from testbed.core.units import PositiveCount, PositiveTokens
from testbed.memory.policy import MemoryPolicy
from testbed.sched.plan import Outcome, Plan, Results
from testbed.sched.preemption import PreemptionRule
from testbed.sched.scheduler import Scheduler
from testbed.sched.state import SchedulerState


class PaddedGroups(SchedulerState):
    """Candidates of a beam keep their own tokens: request-level batches do not follow beams."""

    def join_batch(self, group: SequenceGroup) -> None:
        super().join_batch(group)
        self.beams.clear()


class StaticBatch(Scheduler):
    """Takes up to max_batch_size of the earliest requests and pads their prompts and outputs to the
    longest of each.

    A batch ends before its longest prompt and longest output together would exceed max_padded_len
    tokens, and so reads true lengths: `lengths`, in tokens by request id. Padding is paid in time:
    every sequence passes through every iteration until the last has its output, and all are
    answered then. Nothing is ever preempted, so the policy must reserve whole outputs at admission.
    """

    state_class: ClassVar[type[SchedulerState]] = PaddedGroups

    def __init__(
        self,
        policy: MemoryPolicy,
        preemption: PreemptionRule,
        *,
        max_batch_size: PositiveCount,
        max_padded_len: PositiveTokens,
        lengths: OutputLengths | None = None,
    ) -> None:
        super().__init__(policy, preemption)
        self.lengths = lengths
        self.max_batch_size = max_batch_size
        self.max_padded_len = max_padded_len
        self._padded_len = 0

    def plan(self) -> Plan:
        if self.state.running:
            return self._decode()
        plan = self.new_plan()
        waiting = self.state.waiting
        while waiting and self._takes(waiting[0], plan):
            group = waiting[0]
            hit = self.state.lookup(group)
            answer = self.state.admit(group, group.prefill_len, plan, hit)
            if isinstance(answer, list):
                self.state.schedule_chunk(group, group.todo[0].new, plan)
            elif not answer.is_final:
                break
        self._padded_len = max((chunk.num_stored + chunk.new for chunk in plan.chunks), default=0)
        longest = max((chunk.new for chunk in plan.chunks), default=0)
        plan.chunks = [chunk._replace(padding=longest - chunk.new) for chunk in plan.chunks]
        return plan

    def finish(self, group: SequenceGroup) -> None:
        """The group has its output, and keeps its slots until all have theirs."""
        self.state.leave_batch(group)

    def cancel(self, group: SequenceGroup) -> list[SequenceGroup]:
        """The others of its batch are answered now if they have waited for this one only."""
        super().cancel(group)
        return self._finished()

    def commit(self, plan: Plan, steps: int, results: Results) -> Outcome:
        outcome = super().commit(plan, steps, results)
        if plan.decode_seqs:
            self._padded_len += steps
        return outcome._replace(finished=self._finished())

    def _finished(self) -> list[SequenceGroup]:
        """The groups of a batch that has ended, which give back their slots."""
        finished = [] if self.state.batch.sequences else list(self.state.running.values())
        for group in finished:
            self.state.release(group, FINISHED)
        return finished

    def _takes(self, group: SequenceGroup, plan: Plan) -> bool:
        batch = [*(chunk.group.request for chunk in plan.chunks), group.request]
        if self.lengths is None:
            raise OracleError(
                f"{type(self).__name__}: was built without true output lengths (give lengths=, and "
                "the same mapping to simulate)"
            )
        longest_output = max(self.lengths[r.request_id] for r in batch)
        padded_len = max(r.prompt_len for r in batch) + longest_output
        return not plan.chunks or (
            len(batch) <= self.max_batch_size and padded_len <= self.max_padded_len
        )

    def _decode(self) -> Plan:
        batch, num_seqs = self.state.batch, self.state.num_seqs
        answer = self.policy.extend(batch, 1)
        if isinstance(answer, Refusal):
            name = type(self.policy).__name__
            raise InputError(
                key="policy",
                value=name,
                problem="refused, and static batching never preempts",
                remedy="choose a contiguous policy",
            )
        batch.extend(1)
        plan = self.new_plan()
        batch.changes += 1
        self.state.order(answer.ops, plan)
        plan.decode_seqs, plan.decode_max_context = num_seqs, self._padded_len + 1
        plan.decode_context = num_seqs * plan.decode_max_context
        plan.guaranteed_steps = self.state.guaranteed_steps()
        return plan
