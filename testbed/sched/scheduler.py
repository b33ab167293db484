"""The plug-in API for schedulers, and the parts of an iteration that they put together."""

from abc import ABC, abstractmethod
from collections import deque
from itertools import count
from typing import ClassVar

from testbed.core.errors import UnsupportedError
from testbed.core.request import Foresight, Incoming
from testbed.core.sequence import Sequence, SequenceGroup, SequenceStatus
from testbed.core.slots import DEVICE, GRANTED, NO_OPS, Grant, Refusal, record
from testbed.core.units import PositiveCount, PositiveTokens
from testbed.memory.policy import MemoryPolicy
from testbed.sched.plan import Outcome, Plan, Results, broken_promise, one_answer
from testbed.sched.preemption import PreemptionRule, preempt_victim
from testbed.sched.prefill import Prefills
from testbed.sched.state import SchedulerState


class Scheduler(Foresight, ABC):
    """Decides what the next iteration does; an engine does it and calls `commit`.

    It has `state`, the moves of groups, and need only say in `plan` which of them happen, and in
    which order. now_ps is the time in picoseconds at which `plan` is called. A scheduler whose next
    decision depends on time sets Plan.wake_ps, because a span of many iterations makes no call.
    """

    state_class: ClassVar[type[SchedulerState]] = SchedulerState
    plans_ahead: ClassVar[bool] = False

    def __init__(self, policy: MemoryPolicy, preemption: PreemptionRule) -> None:
        self.state = self.state_class(policy)
        self.preemption = preemption
        self.now_ps = 0
        self._seq_ids = count()
        self._keeps_order = type(self).choose_order is Scheduler.choose_order

    @property
    def policy(self) -> MemoryPolicy:
        return self.state.policy

    def add(self, request: Incoming) -> SequenceGroup:
        """Queue a request that has arrived."""
        sequences = [Sequence(next(self._seq_ids), request) for _ in range(request.num_seqs)]
        group = SequenceGroup(request, sequences)
        self.state.waiting.append(group)
        if self.state.policy.prefetches:
            self.state.unloaded.add(group)
        return group

    def close_session(self, session: int) -> None:
        """The last request of the session was answered, or turned away."""
        self.policy.close_session(session)

    def finish(self, group: SequenceGroup) -> None:
        """The group has its whole output: remove it and release its slots."""
        self.state.leave_batch(group)
        self.state.release(group, SequenceStatus.FINISHED)

    def choose_order(self, waiting: deque[SequenceGroup]) -> None:
        """Put the queue into the order of service before a plan; first come, first served leaves it
        as it is.

        The order depends on the requests in the queue alone, not on the number of calls: a span
        makes none.
        """

    def note(self, max_len: int) -> str | None:
        """What a user must know before a run whose sequences may have max_len tokens; the run's
        first lines have it.
        """
        return None

    @abstractmethod
    def plan(self) -> Plan:
        """Request slots from the policy, choose victims, and return the next iteration's plan; a
        false plan is idle.
        """

    def cancel(self, group: SequenceGroup) -> list[SequenceGroup]:
        """Nobody waits for the group any more: it leaves between two iterations, and its slots are
        free. Returns the groups that are finished because it has left.
        """
        self.state.remove(group, SequenceStatus.CANCELLED)
        return []

    def can_plan_ahead(self) -> bool:
        """Whether the next plan may be made now, while the last iteration of the present one runs.
        Asked where the scheduler `plans_ahead`.
        """
        return False

    def anticipate(self, plan: Plan, steps: int, ended: tuple[int, ...]) -> Outcome:
        """The last of the plan's `steps` iterations begins, and the next plan is made before it has
        run: the state becomes what it will be then. ended: the requests that have their whole
        output then. `commit` follows.
        """
        raise UnsupportedError(f"{type(self).__name__}: makes no plan ahead (define anticipate())")

    def commit(self, plan: Plan, steps: int, results: Results) -> Outcome:
        """The plan was carried out `steps` times, at most 1 + plan.guaranteed_steps, with these
        results.
        """
        return self.carry_out(plan, steps, results)

    def carry_out(self, plan: Plan, steps: int, results: Results) -> Outcome:
        """What `steps` iterations of the plan change: tokens stored, groups that join or end."""
        state, grown = self.state, GRANTED
        first_tokens: list[SequenceGroup] = []
        finished: list[SequenceGroup] = []
        if plan.decode_seqs:
            if steps > 1:
                answer = state.policy.advance(state.batch, steps - 1)
                if not isinstance(answer, Grant) or answer.ops != NO_OPS:
                    raise broken_promise(state.policy, steps - 1, answer)
                grown = answer
                state.batch.extend(steps - 1)
            state.batch.advance(steps)
            for request_id in results.ended:
                group = state.running[request_id]
                if group.batch is not None:
                    self.finish(group)
                    finished.append(group)
            if state.beams:
                for request_id, group in state.beams.items():
                    state.choose_parents(group, results.parents[request_id])
        for group, seq, new, num_stored, last, _ in plan.chunks:
            if num_stored + new > seq.stored_offset:  # at rest
                seq.stored_offset = num_stored + new
            if last:
                first_tokens.append(group)
        if first_tokens or plan.swapped_in:
            finished += self._join(plan, first_tokens, results)
        return record(Outcome, (first_tokens, finished, grown))

    def new_plan(self) -> Plan:
        """The queue is put in order; a plan that has the forks since the last one, and what they
        left to copy.
        """
        plan, state = Plan(), self.state
        if not self._keeps_order and state.waiting:
            self.choose_order(state.waiting)
        if state.forks:
            plan.forks, state.forks = state.forks, 0
            plan.ops, state.copies = [ops for _, ops in state.copies], []
        if state.policy.moves_in_background:
            state.order(state.policy.background(), plan)
        return plan

    def decode(self, plan: Plan) -> None:
        """Extend the batch by one step, preempting until it fits."""
        state, policy = self.state, self.state.policy
        batch = state.batch
        while num_seqs := len(batch.sequences):
            answer = policy.extend(batch, 1)
            if isinstance(answer, Grant):
                batch.extend(1)
                plan.decode_seqs = num_seqs
                plan.decode_context, plan.decode_max_context = batch.context, batch.max_context_len
                if policy.drops_tokens:
                    kept = [policy.num_stored(seq.num_slots) for seq in batch]
                    plan.decode_context, plan.decode_max_context = sum(kept), max(kept)
                if answer.ops is not NO_OPS:
                    state.order(answer.ops, plan)
                if policy.returns_slots:
                    state.memory_released()
                return
            one_answer(policy, answer)
            preempt_victim(state, self.preemption, plan)

    def swap_in(self, plan: Plan) -> None:
        """Swap groups in, the earliest first, as far as they fit; none right after a preemption.

        They step with the batch at once; a group without a slot for its next token only joins.
        """
        state = self.state
        while (
            state.swapped
            and not plan.preempted_any
            and not state.swap_in_refused
            and state.returns_first()
        ):
            group, policy = state.swapped[0], state.policy
            answer = one_answer(policy, policy.move(group.sequences, DEVICE))
            if isinstance(answer, Refusal):
                if state.take_kept():
                    continue
                state.swap_in_refused = True
                return
            state.swapped.popleft()
            state.add_running(group, SequenceStatus.RUNNING)
            state.order(answer.ops, plan)
            plan.swapped_in.append(group)
            for seq in group.sequences:
                policy.publish(seq, seq.num_stored)
            if policy.caches_prefixes:
                state.memory_released()
            if state.ensure_slots(group.sequences, group.sequences[0].num_slots + 1, plan):
                read = policy.num_stored(group.sequences[0].num_slots)
                plan.decode_seqs += len(group.sequences)
                plan.decode_context += len(group.sequences) * read
                plan.decode_max_context = max(plan.decode_max_context, read)

    def _join(
        self, plan: Plan, prefilled: list[SequenceGroup], results: Results
    ) -> list[SequenceGroup]:
        """Groups that are prefilled, or back from the host, join the batch; returns those that have
        ended instead.
        """
        state, stepping, finished = self.state, plan.stepping, []
        for group in (*prefilled, *stepping):
            group.generate()
        for group in stepping:
            for seq in group.sequences:
                seq.num_stored = seq.num_slots
        for group in (*prefilled, *plan.swapped_in):
            if group.request.request_id in results.ended:
                self.finish(group)
                finished.append(group)
                continue
            if group.status is SequenceStatus.RUNNING:  # back from the host
                state.choose_parents(group, results.parents.get(group.request.request_id, ()))
            elif len(group.sequences) > 1 and group.num_generated == 1:
                state.fork(group)
            state.join_batch(group)
        return finished


class IterationLevel(Scheduler):
    """Decides anew in every iteration (Orca), of at most max_num_batched_tokens tokens and
    max_num_seqs sequences.

    `prefills` is the class of `prompts`, which puts prefills into a plan.
    """

    prefills: ClassVar[type[Prefills]] = Prefills

    def __init__(
        self,
        policy: MemoryPolicy,
        preemption: PreemptionRule,
        *,
        max_num_batched_tokens: PositiveTokens,
        max_num_seqs: PositiveCount,
    ) -> None:
        super().__init__(policy, preemption)
        self.max_num_batched_tokens = max_num_batched_tokens
        self.prompts = self.prefills(self.state, max_num_batched_tokens, max_num_seqs)

    def enable_fast_forward(self, plan: Plan) -> None:
        """Offer further identical steps where only an end or an arrival matters; requests that wait
        are prefetched.

        An arrival matters where the queue is empty, where it might come to stand at its head, and
        to a prefetch.
        """
        r = self.state
        if r.unloaded and not plan.preempted_any:
            r.prefetch(plan)
        if (
            plan.chunks
            or len(r.batch.sequences) != r.num_seqs
            or not plan.repeats
            or r.beams
            or plan.preempted_any
        ):
            return
        waiting, swapped = r.waiting, r.swapped
        plan.ends_on_arrival = r.policy.prefetches > 0 or not (
            self._keeps_order and (swapped or waiting)
        )
        if swapped and r.returns_first():
            stable = r.swap_in_refused
        else:
            stable = not waiting or waiting[0] is r.refused or self.prompts.is_full_with(waiting[0])
        if stable:
            plan.guaranteed_steps = r.policy.guaranteed_steps(r.batch)
