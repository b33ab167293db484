"""The scheduler of vLLM V1 (release 0.19): one token budget, for running requests first, then for
waiting ones.
"""

from collections import deque
from typing import Any, ClassVar

from testbed.core.errors import InputError
from testbed.core.request import Incoming
from testbed.core.sequence import SequenceGroup, SequenceStatus
from testbed.core.slots import Granular, ceil_div
from testbed.memory.policy import MemoryPolicy
from testbed.sched.plan import Outcome, Plan, Results
from testbed.sched.preemption import PreemptionRule, preempt_group, preempt_victim
from testbed.sched.scheduler import IterationLevel
from testbed.sched.state import SchedulerState
from testbed.sched.token_budget import ConcurrentPrefills


class VllmV1(IterationLevel):
    """At most max_num_batched_tokens tokens and max_num_seqs running sequences in an iteration.

    Running requests are served in order of admission, decodes and prompts in prefill alike; one
    that lacks slots preempts the last one. An iteration that has preempted admits no request.
    experiments/conf/scheduler/vllm_v1.yaml explains the options.

    Decodes come first in a plan, then prompts in prefill get what is left of the budget. That is
    the same as their common order: whatever was scheduled behind a prompt when it was admitted fits
    behind it again, because no chunk grows but that of the last request. Memory is another matter:
    see `_preempt_in_order`.
    """

    def __init__(
        self,
        policy: MemoryPolicy,
        preemption: PreemptionRule,
        *,
        max_num_batched_tokens: int,
        max_num_seqs: int,
        long_prefill_token_threshold: int,
        scheduler_reserve_full_isl: bool,
        enable_chunked_prefill: bool = True,
        cuts_lone_prompt: bool = True,
        prefetch: int = 0,
    ) -> None:
        super().__init__(
            policy,
            preemption,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=max_num_seqs,
            prefetch=prefetch,
        )
        if max_num_batched_tokens < max_num_seqs:
            raise InputError(
                f"max_num_batched_tokens is {max_num_batched_tokens}; every running sequence gets "
                f"a token, so it must "
                f"be at least max_num_seqs, which is {max_num_seqs}"
            )
        self.threshold = long_prefill_token_threshold or max_num_batched_tokens
        self.cuts_lone_prompt = cuts_lone_prompt
        self.prompts = self.chunks = ConcurrentPrefills(
            self.state,
            max_num_batched_tokens,
            max_num_seqs,
            fits_whole=scheduler_reserve_full_isl,
            cuts=enable_chunked_prefill,
        )

    def plan(self) -> Plan:
        plan = self.new_plan()
        is_alone = (
            len(self.state.running) + len(self.state.waiting) == 1 and not self.cuts_lone_prompt
        )
        self.chunks.max_chunk_tokens = self.max_num_batched_tokens if is_alone else self.threshold
        self._preempt_in_order(plan)
        self.decode(plan)
        self.swap_in(plan)
        self.continue_prefills(plan)
        self.prompts.schedule_prefills(plan)
        self.enable_fast_forward(plan)
        return plan

    def commit(self, plan: Plan, steps: int, results: Results) -> Outcome:
        outcome = super().commit(plan, steps, results)
        self.state.finish_ended()  # the results of an iteration are known as soon as it is over
        return outcome

    def finish(self, group: SequenceGroup) -> None:
        """The group is answered; its slots come back with those of all that end in this
        iteration.
        """
        self.state.leave_batch(group)
        group.status = SequenceStatus.FINISHED
        self.state.ended.append(group)

    def _preempt_in_order(self, plan: Plan) -> None:
        """Where a decode was admitted behind a prompt in prefill: preempt the last until all that
        run have slots.

        Elsewhere `decode` and then `continue_prefills` preempt the same ones. No request is
        scheduled and preempted in one iteration, and the preempted one is always the last: so those
        are left whose needs fit what the others free.
        """
        state = self.state
        if len(state.batch.sequences) == state.num_seqs:
            return
        prefilling = [bool(group.todo) for group in state.running.values()]
        if prefilling != sorted(prefilling):
            while self._lacks_slots():
                preempt_victim(state, self.preemption, plan)

    def _lacks_slots(self) -> bool:
        """Whether the next tokens of all that run need more slots than there are; False where
        blocks do not say.
        """
        memory, budget, needed = self.state.memory, self.max_num_batched_tokens, 0
        for group in self.state.running.values():
            seq = group.sequences[0]
            footprint = memory.footprint(seq)
            if memory.layered is not None or not isinstance(footprint, Granular):
                return False
            size, num_slots = footprint.size, seq.num_slots
            tokens = num_slots
            if group.todo:
                new = min(group.todo[0].new, self.chunks.max_chunk_tokens, budget)
                tokens, budget = max(group.todo[0].num_stored + new, num_slots), budget - new
            elif group.batch is not None:
                tokens, budget = num_slots + 1, budget - 1
            needed += (ceil_div(tokens, size) - ceil_div(num_slots, size)) * size
        used = self.state.policy.usage()
        return needed > used.total - used.held

    def continue_prefills(self, plan: Plan) -> None:
        """The prompts' next chunks; one that lacks slots preempts the last of them, for decodes
        have their step.
        """
        state, prompts = self.state, self.prompts
        if len(state.batch.sequences) == state.num_seqs:
            return
        budget = prompts.budget_left(plan)
        in_prefill = deque(group for group in state.running.values() if group.todo)
        while in_prefill and budget > 0:
            group = in_prefill.popleft()
            seq, left, num_stored = group.todo[0]
            needed = num_stored + min(left, self.chunks.max_chunk_tokens, budget)
            while not state.ensure_slots([seq], needed, plan):
                if state.free_for_running(self.preemption.tail_tokens) or (
                    state.ended and state.end_early(plan)
                ):
                    continue
                victim = in_prefill.pop() if in_prefill else group
                preempt_group(state, self.preemption, victim, plan)
                if victim is group:
                    return
            budget = prompts.schedule_chunks(group, plan, budget)


class StaleState(SchedulerState):
    """What is known of the groups while an iteration runs: `prefilled` have computed the end of
    their prompt in it.
    """

    def __init__(self, policy: MemoryPolicy) -> None:
        super().__init__(policy)
        self.prefilled: list[SequenceGroup] = []

    def before_preemption(self, group: SequenceGroup) -> None:
        """The token that a decode has computed last is unknown, so the block that it fills is not
        published.
        """
        if not group.todo and group not in self.prefilled:
            for seq in group.sequences:
                seq.num_stored -= 1


class AsyncVllmV1(VllmV1):
    """The same with asynchronous scheduling, the release's default: planned while the iteration
    before still runs.

    The plan is made when that one is over, from a state that hides what has changed (DESIGN.md): an
    ended group keeps its place and its slots, and takes one more step if it is still in the batch;
    an arrival is seen by the plan after that. ignore_eos: outputs end at the requested length, as
    in benchmarks, which the plan knows; else they take one step more.

    Fast equals slow, though a plan that ends a span does not see what has arrived since the one
    before: a span that arrivals do not end is one whose next plan admits no request, because slots
    and places are released by results only.
    """

    def __init__(
        self, policy: MemoryPolicy, preemption: PreemptionRule, *, ignore_eos: bool, **release: Any
    ) -> None:
        super().__init__(policy, preemption, **release)
        self.ignore_eos = ignore_eos

    state_class: ClassVar[type[SchedulerState]] = StaleState

    def add(self, request: Incoming) -> SequenceGroup:
        group = super().add(request)
        self.state.arriving.append(self.state.waiting.pop())
        return group

    def finish(self, group: SequenceGroup) -> None:
        if self.ignore_eos:
            super().finish(group)
            return
        if group.batch is None and len(group.sequences) == 1:
            self.state.join_batch(group)
        group.status = SequenceStatus.FINISHED
        self.state.ended.append(group)

    def commit(self, plan: Plan, steps: int, results: Results) -> Outcome:
        outcome = IterationLevel.commit(
            self, plan, steps, results
        )  # the next plan does not know the results
        assert isinstance(self.state, StaleState), "made by state_class"
        self.state.prefilled = outcome.first_tokens
        return outcome

    def plan(self) -> Plan:
        """A plan from the stale state. Where it is empty there was nothing to run ahead of, and it
        is made again.
        """
        stale = super().plan()
        has_changed = self.state.settle()
        if not has_changed:
            return stale
        if stale or stale.rejected:
            stale.guaranteed_steps = 0
            return stale
        plan = super().plan()
        plan.ops[:0], plan.forks = (
            stale.ops,
            plan.forks + stale.forks,
        )  # what it moved and copied has happened
        if stale.preempted_any:
            plan.guaranteed_steps = 0
            plan.preempted[:0], plan.ended_early[:0] = stale.preempted, stale.ended_early
        return plan
