"""Decodes one by one: each running group is served in order of admission, a prompt's next chunk or
an output's newest token with its drafts.
"""

from collections.abc import Callable, Mapping

from testbed.core.errors import InputError
from testbed.core.sequence import FINISHED, RUNNING, SequenceGroup
from testbed.core.slots import record
from testbed.sched.drafting import NoDrafts
from testbed.sched.plan import Draft, Outcome, Plan, Results
from testbed.sched.preemption import (
    PreemptionRule,
    Recompute,
    RecomputeSingleSwapGroup,
    preempt_group,
)
from testbed.sched.token_budget import ConcurrentPrefills
from testbed.sched.victims import chosen_victim
from testbed.sched.vllm_state import VllmState
from testbed.vllm.releases import Release

Finish = Callable[[SequenceGroup], None]


class InTurn:
    """Serves the running groups of vLLM's scheduler, whose decodes are in no batch: with drafts
    their lengths grow by different numbers, and with priorities a step may leave some out.

    Each gets slots for its tokens and for the look-ahead of its drafts; while it lacks them, the
    group that ranks last is preempted, even if this plan has scheduled it. Under asynchronous
    scheduling (plans_ahead) the plan ahead takes each draft in flight for accepted, and the results
    correct it. finish: called with a group that has its whole output. max_len: tokens of the
    longest sequence.
    """

    def __init__(
        self,
        state: VllmState,
        preemption: PreemptionRule,
        *,
        prompts: ConcurrentPrefills,
        drafts: NoDrafts,
        release: Release,
        max_len: int,
        finish: Finish,
        plans_ahead: bool,
    ) -> None:
        if type(preemption) not in (Recompute, RecomputeSingleSwapGroup):
            raise InputError(
                key="preemption",
                value=type(preemption).__name__,
                problem=("is not modelled with drafts, or in order of rank with scheduler=vllm_v1"),
                remedy="preemption=recompute",
            )
        self.state = state
        self.preemption = preemption
        self.prompts = prompts
        self.drafts = drafts
        self.release = release
        self.max_len = max_len
        self.finish = finish
        self.plans_ahead = plans_ahead
        self._budget = 0  # tokens that this plan may have on top
        self._scheduled: dict[SequenceGroup, int] = {}  # tokens of this plan

    def serve(self, plan: Plan) -> None:
        """Schedule the running groups as far as the budget allows, preempting for those that lack
        slots.
        """
        self._scheduled.clear()
        self._budget = self.prompts.limits.max_num_batched_tokens - self.drafts.num_charged
        running, turn = list(self.state.running.values()), 0
        while turn < len(running) and self._budget > 0:
            group = running[turn]
            turn += 1
            num_computed = _num_computed(group)
            num_tokens = self._num_tokens(group, num_computed)
            if num_tokens <= 0:
                continue
            while not self._has_slots(group, num_computed + num_tokens, plan):
                victim = self._victim()
                turn -= self._turns_lost(victim, running.index(victim) < turn)
                running.remove(victim)
                self._preempt(victim, plan)
                if victim is group:
                    break
            if group.request_id in self.state.running:
                self._schedule(group, num_tokens, plan)
            elif not self.release.serves_behind_victims:
                return

    def _num_tokens(self, group: SequenceGroup, num_computed: int) -> int:
        """Tokens that the group computes in this iteration, behind num_computed ones."""
        if group.status is FINISHED:  # its last iteration is in flight
            return 0
        fitting = self.max_len - 1 - num_computed
        if group.todo:
            return min(self.prompts.chunk_of(group, self._budget), fitting)
        most = min(self.prompts.max_chunk_tokens, self._budget, fitting)
        return min(1 + self.drafts.take(group), most) if most > 0 else 0

    def _has_slots(self, group: SequenceGroup, num_tokens: int, plan: Plan) -> bool:
        """Give the group slots for num_tokens tokens and the look-ahead; whether it has them."""
        seq, memory = group.sequences[0], self.state.memory
        needed = min(num_tokens + self.drafts.num_lookahead, self.max_len)
        if memory.layered is not None and memory.serves_in_turn is not None:
            memory.serves_in_turn.reserve_in_turn([(seq, max(needed - seq.num_slots, 0))])
        return self.state.ensure_slots([seq], needed, plan) or (
            self.state.free_for_running(self.preemption.tail_tokens)
            and self._has_slots(group, num_tokens, plan)
        )

    def _victim(self) -> SequenceGroup:
        return chosen_victim(self.state, self.preemption)

    def _turns_lost(self, victim: SequenceGroup, had_turn: bool) -> int:
        """The number of turns that move up when the victim leaves. A release that
        skips_behind_victims moves them up for a victim that this plan has scheduled alone.
        """
        if self.release.skips_behind_victims and not self.state.ranking.keeps_arrival:
            return int(victim in self._scheduled)
        return int(had_turn)

    def _preempt(self, victim: SequenceGroup, plan: Plan) -> None:
        """The victim loses its slots, and its place in this plan; what was scheduled of it stays
        findable, as in vLLM, though it is never computed.
        """
        self.drafts.forget(victim)
        num_tokens = self._scheduled.pop(victim, 0)
        if num_tokens:
            self._budget += num_tokens + self.drafts.num_charged
            plan.leave_out(victim)
        preempt_group(self.state, self.preemption, victim, plan)

    def _schedule(self, group: SequenceGroup, num_tokens: int, plan: Plan) -> None:
        self._budget -= num_tokens + self.drafts.num_charged
        self._scheduled[group] = num_tokens
        if group.todo:
            self.state.schedule_chunk(group, num_tokens, plan)
            return
        plan.drafts.append(record(Draft, (group, group.sequences[0], num_tokens - 1)))
        self.state.findable[group.request_id] = group.prefill_len

    def verify(self, plan: Plan, results: Results, outcome: Outcome) -> Outcome:
        """The results of a plan are in: the newest tokens and the accepted drafts are stored.
        outcome: that of the plan's prompts.
        """
        verified = [self._verify(draft, results) for draft in plan.drafts]
        self._propose(plan, [*verified, *outcome.first_tokens], results.found)
        if not results.ended:
            return outcome
        ended = [group for group in verified if group.status is FINISHED]
        return outcome._replace(finished=[*ended, *outcome.finished])

    def _verify(self, draft: Draft, results: Results) -> SequenceGroup:
        """The newest token and the accepted drafts are stored, and the next token is there."""
        group, seq = draft.group, draft.seq
        request_id = group.request_id
        num_accepted = results.accepted[request_id]
        returns_slots = self.drafts.accept(draft, num_accepted)
        seq.stored_offset += 1 + num_accepted  # as `num_stored`, outside a batch
        group.generate(1 + num_accepted)
        if self.state.hashes_results:
            self.state.findable.pop(request_id, None)
        if request_id in results.ended:
            self.finish(group)
        elif returns_slots:
            self.state.return_rejected(seq)
        return group

    def _propose(
        self, plan: Plan, groups: list[SequenceGroup], found: Mapping[int, int] | None = None
    ) -> None:
        self.drafts.propose(groups, len(plan.drafts) + len(plan.chunks), found or {})

    def anticipate(self, plan: Plan, certain: tuple[int, ...], outcome: Outcome) -> None:
        """A plan begins whose results are in when the next plan has been made. certain: requests
        that have their whole output then. outcome: that of its prompts.
        """
        for draft in plan.drafts:
            if draft.group.request_id in certain:
                self.finish(draft.group)
            elif not draft.is_over:
                self._store_unknown(draft.group, 1 + draft.num_drafts)
        for chunk in plan.chunks:
            if chunk.padding and chunk.group.status is RUNNING:
                self._store_unknown(chunk.group, chunk.padding)
        self._propose(plan, [*(draft.group for draft in plan.drafts), *outcome.first_tokens])

    def _store_unknown(self, group: SequenceGroup, num_tokens: int) -> None:
        """Store num_tokens tokens that may be void, hidden from lookups."""
        seq = group.sequences[0]
        self.state.findable[group.request_id] = seq.num_stored
        seq.num_stored += num_tokens

    def correct(self, plan: Plan, results: Results) -> None:
        """The results of a plan that was anticipated are in."""
        for chunk in plan.chunks:
            if chunk.padding and chunk.group.status is RUNNING:
                chunk.seq.num_stored -= chunk.padding
        for draft in plan.drafts:
            if draft.group.request_id in results.accepted:
                self._correct(draft, results)

    def _correct(self, draft: Draft, results: Results) -> None:
        """Since the draft was anticipated its group may have ended, or have been preempted."""
        group, seq, num_drafts = draft
        num_accepted = results.accepted[group.request_id]
        self.drafts.accept(draft, num_accepted)
        if group.status is RUNNING:
            seq.num_stored -= num_drafts - num_accepted
        group.generate(1 + num_accepted)


def _num_computed(group: SequenceGroup) -> int:
    """Tokens that are stored when the plans in flight have run."""
    return group.todo[0].num_stored if group.todo else group.sequences[0].stored_offset
