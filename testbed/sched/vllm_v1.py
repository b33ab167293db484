"""The scheduler of vLLM V1: one token budget, for running requests first, then for waiting ones."""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

from testbed.core.errors import InputError
from testbed.core.sequence import FINISHED, Sequence, SequenceGroup
from testbed.core.slots import Granular, Ops, ceil_div
from testbed.core.units import NumTokens, PositiveTokens
from testbed.memory.policy import UNBOUNDED_LEN, MemoryPolicy
from testbed.memory.protocols import Offloads, ServesInTurn
from testbed.sched.drafting import (
    Drafting,
    NoDrafts,
    check_ahead,
    check_chunk,
    check_memory,
    without_drafters_tokens,
)
from testbed.sched.drafting_prefills import DraftingPrefills
from testbed.sched.in_turn import InTurn
from testbed.sched.offloading_prefills import OffloadingPrefills
from testbed.sched.plan import Outcome, Plan, Results, plain_int
from testbed.sched.preemption import PreemptionRule, preempt_group, preempt_victim
from testbed.sched.scheduler import IterationLevel
from testbed.sched.state import SchedulerState
from testbed.sched.token_budget import ConcurrentPrefills
from testbed.sched.vllm_state import VllmState
from testbed.speculation.speculation import Speculation
from testbed.vllm.releases import DEFAULT, Release


class VllmV1(IterationLevel):
    """At most max_num_batched_tokens tokens and max_num_seqs running sequences in an iteration.

    Running requests are served in order of admission, decodes and prompts in prefill alike; one
    that lacks slots preempts the last one, in arrival or in rank. An iteration that has preempted
    admits no request. experiments/conf/scheduler/vllm_v1.yaml explains the options.

    Decodes come first in a plan, then prompts in prefill get what is left of the budget. That is
    the same as their common order: whatever was scheduled behind a prompt when it was admitted fits
    behind it again, because no chunk grows but that of the last request. Memory is another matter:
    see `_preempt_in_order`. With a drafter, in an order by rank, and if the memory cuts chunks,
    they are served one by one (`turns`).

    Attributes:
        release: vLLM's.
        drafter: what drafts tokens; None: nothing does.
        drafting: the drafts; None without a drafter.
        chunks: `prompts`, which puts prompts into a plan in chunks.
        turns: serves running requests one by one; None: decodes step together.
    """

    has_steady_plans: ClassVar[bool] = True
    synchronous_by: ClassVar[str] = "--no-async-scheduling"
    admits_after_decodes: ClassVar[bool] = True
    state_class: ClassVar[type[SchedulerState]] = VllmState
    offloads: ClassVar[bool] = True
    keeps_budget: ClassVar[bool] = True
    cuts_chunks: ClassVar[bool] = True  # if the policy gives it
    release: Release

    def __init__(
        self,
        policy: MemoryPolicy,
        preemption: PreemptionRule,
        *,
        long_prefill_token_threshold: NumTokens,
        scheduler_reserve_full_isl: bool,
        enable_chunked_prefill: bool = True,
        release: Release = DEFAULT,
        drafter: Speculation | None = None,
        max_len: PositiveTokens = UNBOUNDED_LEN,
        **limits: Any,
    ) -> None:
        super().__init__(policy, preemption, **limits)
        assert isinstance(self.state, VllmState), "made by state_class"
        self._vllm = self.state
        self._offloads = self.memory.offloads
        most, num_seqs = self.limits.max_num_batched_tokens, self.limits.max_num_seqs
        if most < num_seqs:
            raise InputError(
                key="scheduler.max_num_batched_tokens",
                value=most,
                problem=(
                    "every running sequence gets a token, so it must be at least max_num_seqs, "
                    f"which is {num_seqs}"
                ),
            )
        self.limits = replace(self.limits, max_chunk_tokens=long_prefill_token_threshold or most)
        self.release = release
        self.drafter = drafter
        self.drafting = None if drafter is None else self._drafting(drafter)
        self.max_len = min(max_len, plain_int(policy, "max_seq_len()", policy.max_seq_len(1, 1)))
        self.prompts = self.chunks = self._prompts(
            fits_whole=scheduler_reserve_full_isl, cuts=enable_chunked_prefill
        )
        self.turns = self._turns()

    def _drafting(self, drafter: Speculation) -> Drafting:
        """The drafts of a drafter, whose own batch takes tokens of the budget."""
        check_memory(self.memory, drafter)
        check_chunk(self.limits, drafter, self.release)
        if self.plans_ahead:
            check_ahead(drafter)
        self.limits = without_drafters_tokens(self.limits, drafter, self.release)
        self._vllm.num_behind = self.release.tokens_behind(drafter.drops_last_block)
        return Drafting(drafter, self.release)

    def _prompts(self, *, fits_whole: bool, cuts: bool) -> ConcurrentPrefills:
        if self.memory.offloads is not None:
            return OffloadingPrefills(self.state, self.limits, fits_whole=fits_whole, cuts=cuts)
        if self.drafter is None or not self.release.admits_with_drafts:
            return ConcurrentPrefills(self.state, self.limits, fits_whole=fits_whole, cuts=cuts)
        return DraftingPrefills(
            self.state,
            self.limits,
            fits_whole=fits_whole,
            cuts=cuts,
            speculation=self.drafter,
            max_len=self.max_len,
        )

    def _turns(self) -> InTurn | None:
        cuts = self.memory.cuts_chunks
        is_cut = cuts is not None and cuts.has_chunks()
        self.steps_in_turn = self.drafting is not None or not self.order.keeps_arrival or is_cut
        self._vllm.steps_in_turn = self.steps_in_turn
        self._vllm.hashes_results = self.plans_ahead or self.release.hashes_results
        if not self.steps_in_turn:
            return None
        if self.memory.offloads is not None:
            raise InputError(
                key=self.memory.name,
                problem="is not modelled with drafts or an order by rank",
                remedy="order=first_come",
            )
        return InTurn(
            self._vllm,
            self.preemption,
            prompts=self.chunks,
            drafts=self.drafting or NoDrafts(),
            release=self.release,
            max_len=self.max_len,
            finish=self.finish,
            plans_ahead=self.plans_ahead,
        )

    def plan(self) -> Plan:
        plan = self.new_plan()
        self.limit_chunks()
        cuts_chunks = self.state.memory.cuts_chunks
        if cuts_chunks is not None and cuts_chunks.begin_plan():
            self.state.memory_released()
        if self.turns is None:
            self._serve_together(plan)
        else:
            self.turns.serve(plan)
        self.prompts.schedule_prefills(plan)
        if self._offloads is not None:
            self.state.order(self._stores(self._offloads, plan), plan)
        self.enable_fast_forward(plan)
        return plan

    def _stores(self, offloads: Offloads, plan: Plan) -> Ops:
        """Blocks that the plan's requests, and those that have ended since the last one, store
        below; of single sequences.
        """
        computed = {chunk.seq: chunk.num_stored + chunk.new for chunk in plan.chunks}
        for group in self.state.running.values() if plan.decode_seqs else ():
            if group.batch is not None:
                computed[group.sequences[0]] = group.sequences[0].num_stored + 1
        running = self.state.running.values()
        seqs = [group.sequences[0] for group in running if len(group.sequences) == 1]
        scheduled = [(seq, computed[seq]) for seq in seqs if seq in computed]
        departed, self._vllm.departed = self._vllm.departed, []
        preempted = [seq for group in plan.preempted for seq in group.sequences]
        return offloads.begin_stores(scheduled, preempted, departed)

    def _serve_together(self, plan: Plan) -> None:
        """The batch takes a step, and then prompts in prefill go on."""
        memory = self.state.memory
        if memory.layered is None:
            self._preempt_in_order(plan)
        else:
            self._serve_in_turn(memory.serves_in_turn, plan)
        self.decode(plan)
        if self.state.swapped:
            self.swap_in(plan)
        self.continue_prefills(plan)

    def limit_chunks(self) -> None:
        """Set the longest chunk of the next plan."""
        num_groups = len(self.state.running) + len(self.state.waiting)
        is_cut = num_groups != 1 or self.release.cuts_lone_prompt
        limits = self.limits
        most = limits.max_chunk_tokens if is_cut else limits.max_num_batched_tokens
        self.chunks.max_chunk_tokens = most

    @property
    def keeps_refused(self) -> bool:
        """See IterationLevel."""
        return super().keeps_refused and not self.chunks.asks_again

    def _admits_none(self) -> bool:
        """As in every scheduler, but a refused group that is asked again may be admitted in any
        plan, unless the limits of the batch keep it out.
        """
        waiting = self.state.waiting
        if self._offloads is not None and (waiting or self.state.loading):
            return False
        if waiting and self.chunks.asks_again:
            return self.prompts.is_full_with(waiting[0])
        return super()._admits_none()

    def commit(self, plan: Plan, steps: int, results: Results) -> Outcome:
        outcome = self.carry_out(plan, steps, results)
        if self.turns is not None:
            outcome = self.turns.verify(plan, results, outcome)
        if self.state.ended:  # the results of an iteration are known as soon as it is over
            self.state.finish_ended()
        return outcome

    def cancel(self, group: SequenceGroup) -> list[SequenceGroup]:
        if self.drafting is not None:
            self.drafting.forget(group)
        return super().cancel(group)

    def finish(self, group: SequenceGroup) -> None:
        """The group is answered; its slots come back with those of all that end in this
        iteration.
        """
        if self.steps_in_turn:
            self._vllm.hide_unknown(group)
        self.state.leave_batch(group)
        group.status = FINISHED
        self.state.ended.append(group)

    def make_room(self, plan: Plan) -> None:
        if not self._serve_in_turn(self.memory.serves_in_turn, plan):
            super().make_room(plan)

    def _serve_in_turn(self, policy: ServesInTurn | None, plan: Plan) -> bool:
        """Slots are set aside for the next tokens of those that run, in order of admission, and the
        last is preempted for one that lacks them, if the policy serves in turn; whether one was.

        The order counts for what is evicted: what a sequence gives back, or leaves when it is
        preempted, comes too late for those before it.
        """
        lacked = False
        while policy and policy.reserve_in_turn(wanted := list(self._next_slots())) < len(wanted):
            preempt_victim(self.state, self.preemption, plan)
            lacked = True
        return lacked

    def _preempt_in_order(self, plan: Plan) -> None:
        """If a decode was admitted behind a prompt in prefill: preempt the last until all that run
        have slots.

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
                self.make_room(plan)

    def _lacks_slots(self) -> bool:
        """True if the next tokens of all that run need more slots than there are; False if
        blocks do not say.
        """
        needed = 0
        for seq, more in self._next_slots():
            footprint = self.state.memory.footprint(seq)
            if not isinstance(footprint, Granular):
                return False
            size, num_slots = footprint.size, seq.num_slots
            needed += (ceil_div(num_slots + more, size) - ceil_div(num_slots, size)) * size
        used = self.state.policy.usage()
        return needed > used.total - used.held

    def _next_slots(self) -> Iterator[tuple[Sequence, int]]:
        """The sequences that run, in order, with the slots that their next tokens take."""
        budget = self.limits.max_num_batched_tokens
        for group in self.state.running.values():
            seq = group.sequences[0]
            if group.todo:
                new = self.chunks.chunk_of(group, budget)
                if not new:
                    continue
                budget -= new
                yield seq, max(group.todo[0].num_stored + new - seq.num_slots, 0)
            elif group.batch is not None:
                budget -= 1
                yield seq, 1

    def continue_prefills(self, plan: Plan) -> None:
        """Plan the prompts' next chunks; one that lacks slots preempts the last of them, because
        decodes have their step.
        """
        state, prompts = self.state, self.prompts
        if len(state.batch.sequences) == state.num_seqs:
            return
        budget = prompts.budget_left(plan)
        in_prefill = deque([group for group in state.running.values() if group.todo])
        while in_prefill and budget > 0:
            group = in_prefill.popleft()
            seq, _, num_stored = group.todo[0]
            new = self.chunks.chunk_of(group, budget)
            while not state.ensure_slots([seq], num_stored + new, plan):
                if state.free_for_running(self.preemption.tail_tokens):
                    continue
                victim = in_prefill.pop() if in_prefill else group
                preempt_group(state, self.preemption, victim, plan)
                if victim is group:
                    return
            if len(group.todo) > 1:  # other sequences of the group may have budget, too
                budget = prompts.schedule_chunks(group, plan, budget)
            elif new:
                state.schedule_chunk(group, new, plan)
                budget -= new


class AsyncVllmV1(VllmV1):
    """VllmV1 with asynchronous scheduling, vLLM's default: the next plan is made while an
    iteration runs.

    When the last iteration of a plan begins, the engine calls `anticipate` and asks for the next
    plan, which therefore knows the results of the iteration before, and what had arrived by then.
    A group that ends in the iteration under way keeps its place and its slots in that plan.
    ignore_eos: outputs end at the requested length, as in benchmarks, which the plan knows; else
    they take one step more, unless they fill the model's length, and a group that this plan swaps
    out while its last token is computed ends on the host: its slots are moved out, and never in.
    """

    plans_ahead: ClassVar[bool] = True

    def __init__(
        self, policy: MemoryPolicy, preemption: PreemptionRule, *, ignore_eos: bool, **options: Any
    ) -> None:
        super().__init__(policy, preemption, **options)
        self.ignore_eos = ignore_eos
        self._anticipated: Outcome | None = None

    def can_plan_ahead(self) -> bool:
        """True if the next plan may be made now; which beams survive an iteration must be known
        before the next.
        """
        return not any(group.request.beam for group in self.state.running.values())

    def anticipate(self, plan: Plan, steps: int, ended: tuple[int, ...]) -> Outcome:
        """The last of the plan's `steps` iterations begins. Requests in `ended` have their whole
        output then, which is known now only if outputs end at the requested length.
        """
        certain = ended if self.ignore_eos else self._of_full_length(ended, steps)
        outcome = self.carry_out(plan, steps, Results(certain))
        if self.turns is not None:
            self.turns.anticipate(plan, certain, outcome)
        self._vllm.prefilled, self._anticipated = outcome.first_tokens, outcome
        return outcome

    def _of_full_length(self, requests: tuple[int, ...], steps: int) -> tuple[int, ...]:
        """The requests that have the model's length after `steps` steps, and get no further one."""
        groups = ((name, self.state.find(name)) for name in requests)
        return tuple(
            name
            for name, group in groups
            if group and group.request.prompt_len + group.num_generated + steps >= self.max_len
        )

    def commit(self, plan: Plan, steps: int, results: Results) -> Outcome:
        """Groups that have ended release their slots; all else was anticipated."""
        outcome = self._anticipated
        if outcome is None:
            return super().commit(plan, steps, results)
        if self.turns is not None:
            self.turns.correct(plan, results)
        self._vllm.prefilled = self._anticipated = None
        ended_groups = map(self.state.find, results.ended)
        finished = [group for group in ended_groups if group is not None]
        ended = [group for group in self.state.running.values() if group in finished]
        for group in ended:
            self.state.remove(group, FINISHED)
        for group in finished:
            if group not in ended:
                self._vllm.finish_preempted(group)
        return outcome._replace(finished=finished)
