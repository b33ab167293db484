"""The plug-in API for schedulers, and the parts of an iteration that they put together."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import ClassVar

from testbed.core.errors import InputError, UnsupportedError
from testbed.core.request import Incoming
from testbed.core.sequence import CANCELLED, FINISHED, RUNNING, Sequence, SequenceGroup
from testbed.core.slots import GRANTED, NO_OPS, Grant, record
from testbed.core.units import Count, PositiveCount, PositiveTokens
from testbed.memory.policy import MemoryPolicy
from testbed.memory.protocols import ReadsColumns
from testbed.sched.drafting import Drafting
from testbed.sched.limits import Limits
from testbed.sched.orders import FIRST_COME, Order
from testbed.sched.plan import Outcome, Plan, Results, broken_promise, one_answer
from testbed.sched.preemption import PreemptionRule, preempt_victim
from testbed.sched.prompt_plans import PromptPlans
from testbed.sched.state import SchedulerState
from testbed.sched.swap import precedes_admission, swap_in
from testbed.sched.token_budget import Prefills
from testbed.speculation.speculation import Speculation
from testbed.vllm.releases import Release

PutInOrder = Callable[[deque[SequenceGroup]], None]


class Scheduler(ABC):
    """Decides what the next iteration does; an engine does it and calls `commit`.

    It has `state`, the moves of groups, and need only say in `plan` which of them happen, and in
    which order. A scheduler whose next decision depends on time sets Plan.wake_ps, because a span
    of many iterations makes no call.

    One that serves in another order than that of arrival defines the method `choose_order`, which
    puts the queue that it is given into the order of service before a plan. The order depends on
    the requests in the queue alone, not on the number of calls: a span makes none.

    An oracle has a parameter `lengths` (testbed/run/oracles.py).

    Attributes:
        state: waiting, running and swapped groups, and the batch.
        policy, memory: what gives slots, and its capabilities.
        preemption: the rule that names victims.
        readers: its parts that may read columns of the trace, by the option that chooses each, and
            itself last.
        now_ps: the time in picoseconds at which `plan` is called.
        plans_ahead: it makes a plan while another is in flight.
        synchronous_by: the option by which its system makes none; empty: of no such system.
        cuts_chunks: the policy says where its chunks of prompts end.
        offloads: it serves a policy that loads into slots; see memory/protocols.py, Offloads.
        loads_hits: it serves a policy that loads what it admits; see there, LoadsHits.
        keeps_budget: no iteration has more tokens than the parameter max_num_batched_tokens.
        names_victims: it chooses victims itself, which are computed again; `preemption` is unread.
        ends_at_declared: every output is to have its declared number of tokens (max_new_tokens).
        limits: of an iteration, in tokens and sequences; None: it has none of this kind.
        release: of vLLM, whose scheduler it is; None: of no other system that has releases.
        drafter: what drafts tokens; None: nothing does.
        drafting: the drafts; None without a drafter.
        steps_in_turn: its sequences decode one by one, in no batch (Plan.drafts).
        is_steady: its `plan` only takes promised steps of the batch while `is_decoding`, and its
            `commit` then only advances the batch if no output has ended and no beam has other
            candidates. The class of a scheduler says so itself (`has_steady_plans`): one derived
            from it may plan otherwise.
    """

    state_class: ClassVar[type[SchedulerState]] = SchedulerState
    plans_ahead: ClassVar[bool] = False
    synchronous_by: ClassVar[str] = ""
    cuts_chunks: ClassVar[bool] = False
    offloads: ClassVar[bool] = False
    loads_hits: ClassVar[bool] = False
    keeps_budget: ClassVar[bool] = False
    names_victims: ClassVar[bool] = False
    ends_at_declared: bool = False
    limits: Limits | None = None
    release: Release | None = None
    drafter: Speculation | None = None
    drafting: Drafting | None = None
    choose_order: PutInOrder | None = None

    def __init__(self, policy: MemoryPolicy, preemption: PreemptionRule) -> None:
        """A scheduler without requests; further parameters are given by name.

        Args:
            policy: that gives slots.
            preemption: the rule that names victims.
        """
        self.state = self.state_class(policy)
        self.policy, self.memory = policy, self.state.memory
        if self.memory.offloads is not None and not self.offloads:
            raise InputError(
                key=self.memory.name,
                problem=f"loads into slots, which {type(self).__name__} does not schedule",
                remedy="scheduler=vllm_v1 or vllm_v1_async",
            )
        if self.memory.loads_hits is not None and not self.loads_hits:
            raise InputError(
                key=self.memory.name,
                problem=f"loads what is admitted, which {type(self).__name__} does not schedule",
                remedy="scheduler=sglang or sglang_no_overlap",
            )
        self.preemption = preemption
        self.readers: dict[str, ReadsColumns] = {"scheduler": self}
        self.now_ps = 0
        self.steps_in_turn = False
        self.is_steady = False
        self._seq_ids = count()
        self._choose_order: PutInOrder | None = self.choose_order

    @property
    def prompt_plans(self) -> PromptPlans | None:
        """Makes most plans that compute prompts, for an engine that asks it first; None: `plan`
        makes all of them.
        """
        return None

    @property
    def is_decoding(self) -> bool:
        """True if all that run are in the batch, and no request is to be admitted, swapped in or
        forked: the next plan is a step of the batch, if there are the slots.
        """
        return False

    @property
    def serves_as_they_come(self) -> bool:
        """True if requests are served in order of arrival."""
        return self._choose_order is None

    def columns_read(self) -> tuple[str, ...]:
        """The optional columns of a trace that it reads, as in ReadsColumns."""
        return ()

    def add(self, request: Incoming) -> SequenceGroup:
        """Queue a request that has arrived.

        Args:
            request: without its output length.
        """
        group = self.new_group(request)
        self.state.waiting.append(group)
        return group

    def new_group(self, request: Incoming) -> SequenceGroup:
        """The sequences of a request, which are in no queue yet.

        Args:
            request: without its output length.
        """
        if request.num_seqs == 1:
            return SequenceGroup(request, [Sequence(next(self._seq_ids), request)])
        sequences = [Sequence(next(self._seq_ids), request) for _ in range(request.num_seqs)]
        return SequenceGroup(request, sequences)

    def close_session(self, session: int) -> None:
        """The last request of the session was answered, or turned away.

        Args:
            session: its number.
        """
        self.state.close_session(session)

    def finish(self, group: SequenceGroup) -> None:
        """The group has its whole output: remove it and release its slots.

        Args:
            group: the sequences of the request.
        """
        self.state.leave_batch(group)
        self.state.release(group, FINISHED)

    def max_output_len(self, prompt_len: int) -> int | None:
        """The output tokens at which the server would end a request of such a prompt; None: it ends
        none. An engine rejects requests that have more.

        Args:
            prompt_len: tokens of the prompt.
        """
        return None

    def note(self, max_len: int) -> str | None:
        """A note before a run whose sequences may have max_len tokens; the run's first lines have
        it.

        Args:
            max_len: tokens of prompt and output.
        """
        return None

    @abstractmethod
    def plan(self) -> Plan:
        """Request slots from the policy, choose victims, and return the next iteration's plan; a
        false plan is idle.
        """

    def cancel(self, group: SequenceGroup) -> list[SequenceGroup]:
        """Ends a group that is no longer waited for: it leaves between two iterations, and its
        slots are free. Returns the groups that are finished because it has left.

        Args:
            group: the sequences of the request.
        """
        self.state.remove(group, CANCELLED)
        return []

    def can_plan_ahead(self) -> bool:
        """True if the next plan may be made now, while the last iteration of the present one runs.
        Asked if the scheduler `plans_ahead`.
        """
        return False

    def anticipate(self, plan: Plan, steps: int, ended: tuple[int, ...]) -> Outcome:
        """The last of the plan's iterations begins, and the next plan is made before it has run:
        the state becomes what it will be then. `commit` follows.

        Args:
            plan: the one in flight.
            steps: its iterations.
            ended: ids of the requests that have their whole output then.
        """
        raise UnsupportedError(f"{type(self).__name__}: makes no plan ahead (define anticipate())")

    def commit(self, plan: Plan, steps: int, results: Results) -> Outcome:
        """The plan was carried out.

        Args:
            plan: that `plan` returned.
            steps: how often, at most 1 + plan.guaranteed_steps.
            results: which requests have ended, and the parents of beams.
        """
        return self.carry_out(plan, steps, results)

    def carry_out(self, plan: Plan, steps: int, results: Results) -> Outcome:
        """Applies the changes of iterations of the plan: tokens stored, groups that join or end.

        Args:
            plan: that was carried out.
            steps: how often.
            results: which requests have ended, and the parents of beams.
        """
        state, grown = self.state, GRANTED
        first_tokens: list[SequenceGroup] = []
        finished: list[SequenceGroup] = []
        if plan.decode_seqs:
            if steps > 1:
                answer = state.memory.advance(state.batch, steps - 1)
                if not isinstance(answer, Grant) or answer.ops != NO_OPS:
                    raise broken_promise(state.policy, steps - 1, answer)
                grown = answer
            state.batch.steps += steps
            state.batch.extended += steps - 1
            ended, changed, _, _ = results
            for request_id in ended:
                group = state.running[request_id]
                if group.batch is not None:
                    self.finish(group)
                    finished.append(group)
            if changed:
                beams, fork_members = state.beams, state.pending_forks.fork_members
                for request_id, parents in changed.items():
                    if parents and request_id in beams:
                        fork_members(beams[request_id], parents)
        for group, seq, new, num_stored, last, _ in plan.chunks:
            seq.store(num_stored + new)
            if last:
                first_tokens.append(group)
        if first_tokens or plan.swapped_in:
            finished += self._join(plan, first_tokens, results)
        return record(Outcome, (first_tokens, finished, grown))

    def new_plan(self) -> Plan:
        """The queue is put in order, and what was retained for its time is released; a plan that
        has the forks since the last one, and what they left to copy.
        """
        plan, state = Plan(), self.state
        if state.retention is not None:
            plan.wake_ps = state.expire(self.now_ps)
        if self._choose_order is not None and state.waiting:
            self._choose_order(state.waiting)
        if state.pending_forks.num_forks:
            state.pending_forks.move_into(plan)
        if state.memory.transfers is not None:
            state.order(state.memory.transfers.background(), plan)
        return plan

    def decode(self, plan: Plan) -> None:
        """Extend the batch by one step, preempting until it fits. If a steady plan will only
        decode, the policy is asked before for how many steps.

        Args:
            plan: the one that is being made.
        """
        if self.is_steady and self.is_decoding:
            plan.promised_steps = self.state.guaranteed_steps()
        while self.state.batch.sequences and not self.step(plan):
            self.make_room(plan)

    def step(self, plan: Plan) -> bool:
        """Extend the batch, which is not empty, by one step; whether it has the slots.

        Args:
            plan: the one that is being made.
        """
        state, policy = self.state, self.state.policy
        batch = state.batch
        answer = policy.extend(batch, 1)
        if not isinstance(answer, Grant):
            one_answer(policy, answer)
            return False
        plan.decode_seqs = len(batch.sequences)
        plan.decode_context, plan.decode_max_context = batch.take_step()
        if state.memory.drops_tokens is not None:
            stored = [state.memory.num_stored(seq.prompt_len, seq.num_slots) for seq in batch]
            plan.decode_context, plan.decode_max_context = sum(stored), max(stored)
        if answer.ops is not NO_OPS:
            batch.changes += 1
            state.order(answer.ops, plan)
        if answer.ends_refusals:
            state.memory_released()
        return True

    def make_room(self, plan: Plan) -> None:
        """Preempt, because the batch lacks slots for its next step.

        Args:
            plan: the one that is being made.
        """
        preempt_victim(self.state, self.preemption, plan)

    def swap_in(self, plan: Plan) -> None:
        """Swap groups in, the earliest first, as far as they fit; none right after a preemption.

        Args:
            plan: the one that is being made.
        """
        swap_in(self.state, plan)

    def _join(
        self, plan: Plan, prefilled: list[SequenceGroup], results: Results
    ) -> list[SequenceGroup]:
        """Groups that are prefilled, or back from the host, join the batch; returns those that have
        ended instead.
        """
        state = self.state
        finished: list[SequenceGroup] = []
        for group in prefilled:
            group.generate()
        if plan.swapped_in:
            for group in plan.stepping:
                group.generate()
                for seq in group.sequences:
                    seq.num_stored = seq.num_slots
        for group in prefilled + plan.swapped_in if plan.swapped_in else prefilled:
            if group.request_id in results.ended:
                self.finish(group)
                finished.append(group)
                continue
            if group.status is RUNNING:  # back from the host
                state.choose_parents(group, results.parents.get(group.request_id, ()))
            elif len(group.sequences) > 1 and group.num_generated == 1:
                state.fork(group)
            state.join_batch(group)
        return finished


class IterationLevel(Scheduler):
    """Decides anew in every iteration (Orca), within limits of tokens and sequences.

    Attributes:
        prefills: the class of `prompts`.
        admits_after_decodes: a plan is a step of the batch and then prompts, so that
            `prompt_plans` may make it. The class of a scheduler says so itself, as with
            `has_steady_plans`.
        limits: of an iteration.
        order: of requests.
        prompts: puts prefills into a plan.
    """

    prefills: ClassVar[type[Prefills]] = Prefills
    admits_after_decodes: ClassVar[bool] = False
    limits: Limits

    def __init__(
        self,
        policy: MemoryPolicy,
        preemption: PreemptionRule,
        *,
        max_num_batched_tokens: PositiveTokens,
        max_num_seqs: PositiveCount,
        prefetch: Count = 0,
        order: Order | None = None,
    ) -> None:
        """A scheduler without requests.

        Args:
            policy: that gives slots.
            preemption: the rule that names victims.
            max_num_batched_tokens: tokens of an iteration at most.
            max_num_seqs: sequences that run at most.
            prefetch: waiting requests for which lower tiers' blocks are loaded before their turn.
            order: of requests; None: first come, first served.
        """
        super().__init__(policy, preemption)
        self.limits = Limits(max_num_batched_tokens, max_num_seqs)
        self.order = order or FIRST_COME
        self.readers = {"order": self.order, **self.readers}
        self.state.follow(self.order)
        keeps_all = self.memory.transfers is None and self.memory.drops_tokens is None
        has_steady_plans = vars(type(self)).get("has_steady_plans", False)
        self.is_steady = keeps_all and self.state.retention is None and has_steady_plans
        if self._choose_order is None and not self.order.keeps_arrival:
            self._choose_order = self.order.choose_order
        if prefetch and self.memory.transfers is None:
            raise InputError(
                key="scheduler.prefetch",
                value=prefetch,
                problem=f"{self.memory.name} loads nothing from lower tiers",
                remedy="choose policy=tiered, or leave prefetch out",
            )
        self.prefetch = prefetch
        self.prompts = self.prefills(self.state, self.limits)

    def add(self, request: Incoming) -> SequenceGroup:
        group = self.new_group(request)
        self.state.waiting.append(group)  # as the base does, which would be one more call a request
        if not self.order.keeps_arrival:
            group.rank = (*self.order.rank(request), request.request_id)
        if self.prefetch:
            self.state.not_loaded.add(group)
        return group

    def columns_read(self) -> tuple[str, ...]:
        return self.order.columns_read()

    @property
    def prompt_plans(self) -> PromptPlans | None:
        """See Scheduler."""
        memory = self.memory
        is_plain = memory.layered is None and memory.cuts_chunks is None
        is_declared = vars(type(self)).get("admits_after_decodes", False)
        can = is_declared and is_plain and self._choose_order is None and not self.prefetch
        return PromptPlans(self) if can and self.is_steady and not self.steps_in_turn else None

    def limit_chunks(self) -> None:
        """Called before prompts are put into a plan: set the longest chunk, if it depends on the
        requests.
        """

    def continue_prefills(self, plan: Plan) -> None:
        """Plan the next chunks of the prompts in prefill, if `prompts` only begins some.

        Args:
            plan: the one that is being made.
        """

    @property
    def is_decoding(self) -> bool:
        """See Scheduler."""
        state = self.state
        num_seqs = len(state.batch.sequences)
        if (num_seqs != state.num_seqs or not num_seqs) or (
            state.swapped or state.pending_forks.num_forks
        ):
            return False
        waiting = state.waiting
        return not waiting or (waiting[0] is state.refused and self.keeps_refused)

    @property
    def keeps_refused(self) -> bool:
        """True if the head of the queue stays there, unasked, once it was refused."""
        return self._choose_order is None and not self.prefetch

    def enable_fast_forward(self, plan: Plan) -> None:
        """Offer further identical steps if only an end or an arrival matters; requests that wait
        are prefetched.

        An arrival matters if the queue is empty, if it might come to stand at its head, and
        to a prefetch.

        Args:
            plan: the one that is being made.
        """
        state = self.state
        if state.not_loaded and not plan.preempted:
            state.prefetch(self.prefetch, plan)
        if (
            plan.chunks
            or len(state.batch.sequences) != state.num_seqs
            or plan.ops
            or plan.swapped_in
            or plan.forks
            or not plan.decode_seqs
            or (state.beams and self.plans_ahead)  # their plans are made when candidates are known
            or plan.preempted
        ):
            return
        keeps_order = self._choose_order is None
        is_queue = bool(state.swapped or state.waiting)
        plan.ends_on_arrival = self.prefetch > 0 or not (keeps_order and is_queue)
        promised = plan.promised_steps
        if not self._admits_none():
            return
        if promised is None:
            plan.guaranteed_steps = state.guaranteed_steps()
        else:
            is_some = type(promised) is int and promised > 0  # else the engine may refuse it
            plan.guaranteed_steps = promised - 1 if is_some else promised

    def _admits_none(self) -> bool:
        """True if the group that is next would be refused again, if there is one."""
        state = self.state
        if state.swapped and precedes_admission(state):
            return state.swap_in_refused
        if not state.waiting:
            return True
        first = state.waiting[0]
        return first is state.refused or self.prompts.is_full_with(first)
