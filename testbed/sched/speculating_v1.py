"""vLLM V1's scheduler with speculative decoding: a decode is a chunk of its newest token and the
drafts behind it.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from testbed.core.errors import InputError
from testbed.core.sequence import Sequence, SequenceGroup, SequenceStatus
from testbed.memory.policy import MemoryPolicy
from testbed.sched.drafting_prefills import DraftingPrefills
from testbed.sched.plan import Draft, Outcome, Plan, Results, plain_int
from testbed.sched.preemption import (
    PreemptionRule,
    Recompute,
    RecomputeSingleSwapGroup,
    preempt_group,
)
from testbed.sched.state import SchedulerState
from testbed.sched.token_budget import ConcurrentPrefills
from testbed.sched.vllm_v1 import AsyncVllmV1, StateAhead, VllmV1
from testbed.speculation.counts import DraftCounts
from testbed.speculation.speculation import Speculation
from testbed.vllm.releases import DEFAULT, Release

NONE_FOUND: Mapping[int, int] = {}


class SpeculatingState(StateAhead):
    """Groups that decode are in no batch, because their lengths grow by different numbers.

    findable: by request, the tokens of a decoding sequence that its cache entries may cover, where
    they are fewer than it has stored: a release that does not hash results hashes a block when its
    tokens are known and scheduled again, and not when they are accepted. rules: of the release.
    num_behind: tokens that must be known behind a block that is hashed.
    """

    def __init__(self, policy: MemoryPolicy) -> None:
        super().__init__(policy)
        self.findable: dict[int, int] = {}
        self.rules = DEFAULT
        self.num_behind = 0

    def follow(self, release: Release, speculation: Speculation) -> None:
        """Hash as the release does."""
        self.rules = release
        self.num_behind = int(release.hashes_next_token and speculation.drops_last_block)

    def join_batch(self, group: SequenceGroup) -> None:
        group.status = SequenceStatus.RUNNING

    def before_preemption(self, group: SequenceGroup) -> None:
        self.hide_unknown(group)

    def hide_unknown(self, group: SequenceGroup) -> None:
        """The group leaves its slots: what was not hashed yet is found by nobody."""
        seq = group.sequences[0]
        findable = self.findable.pop(group.request.request_id, seq.num_stored)
        if self.num_behind:
            in_flight = self.prefilled is not None and group in self.prefilled
            findable = min(findable, group.prefill_len - in_flight - self.num_behind)
        seq.num_stored = findable

    def remove(self, group: SequenceGroup, status: SequenceStatus) -> None:
        self.findable.pop(group.request.request_id, None)
        seq = group.sequences[0]
        if self.rules.hashes_results and status is SequenceStatus.FINISHED and seq.num_slots:
            seq.num_stored = group.prefill_len - 1  # what was in flight behind it is void
        super().remove(group, status)

    def return_rejected(self, seq: Sequence) -> None:
        """The slots behind the stored tokens come back."""
        truncates, num_tokens = self.memory.truncates, seq.num_slots - seq.num_stored
        if truncates is None or num_tokens <= 0:
            return
        truncates.truncate(seq, num_tokens)
        seq.set_counts(num_slots=seq.num_stored, num_stored=seq.num_stored)
        self.memory_released()


class SpeculatingV1(VllmV1):
    """Running requests are served in order of admission: a prompt's next chunk, or the newest token
    of an output with its drafts, as far as budget and max_len allow.

    max_len: the longest sequence in tokens; one that the pool alone could not hold is no longer.
    Each needs slots for its tokens and for speculation.num_lookahead more; one that lacks them
    preempts the last running request. Drafts are proposed when an iteration is over. `release` has
    what differs.
    """

    state_class: ClassVar[type[SchedulerState]] = SpeculatingState
    drafts: ClassVar[bool] = True

    def __init__(
        self,
        policy: MemoryPolicy,
        preemption: PreemptionRule,
        *,
        speculation: Speculation,
        max_len: int,
        **options: Any,
    ) -> None:
        super().__init__(policy, preemption, **options)
        assert isinstance(self.state, SpeculatingState), "made by state_class"
        self.speculation = speculation
        self.max_len = min(max_len, plain_int(policy, "max_seq_len()", policy.max_seq_len(1, 1)))
        self._speculating = self.state
        self.counts = DraftCounts()
        self._proposed: dict[int, int] = {}
        _check_memory(self, speculation)
        self.state.follow(self.release, speculation)
        if self.release.admits_with_drafts:
            self._num_charged = speculation.num_inserted
            self.prompts = self.chunks = self._drafting_prefills(self.chunks)
        else:
            self._num_charged = 0
            self._leave_budget(speculation.num_inserted * self.prompts.max_num_seqs)

    def _drafting_prefills(self, plain: ConcurrentPrefills) -> DraftingPrefills:
        return DraftingPrefills(
            self.state,
            plain.max_num_batched_tokens,
            plain.max_num_seqs,
            fits_whole=plain.fits_whole,
            cuts=plain.cuts,
            speculation=self.speculation,
            max_len=self.max_len,
        )

    def _leave_budget(self, num_tokens: int) -> None:
        """Take what the drafter's batch has on top off the budget of an iteration."""
        budget = self.max_num_batched_tokens - num_tokens
        if budget < 1:
            raise InputError(
                f"scheduler.max_num_batched_tokens={self.max_num_batched_tokens}: the drafter's "
                f"batch takes {num_tokens} of these, which leaves nothing (give more, or a smaller "
                f"max_num_seqs)"
            )
        self.max_num_batched_tokens = self.prompts.max_num_batched_tokens = budget
        self.threshold = min(self.threshold, budget)

    def plan(self) -> Plan:
        plan = self.new_plan()
        self.limit_chunks()
        self._serve_running(plan)
        self.prompts.schedule_prefills(plan)
        return plan

    def _serve_running(self, plan: Plan) -> None:
        running, served = list(self.state.running.values()), 0
        budget = self.max_num_batched_tokens - self._num_charged
        while served < len(running) and budget > 0:
            group = running[served]
            served += 1
            num_tokens = self._num_tokens(group, budget)
            if num_tokens <= 0:
                continue
            if not self._ensure_slots(group, num_tokens, running, plan):
                return
            budget -= num_tokens + self._num_charged
            if group.todo:
                self.state.schedule_chunk(group, num_tokens, plan)
            else:
                self._schedule_draft(group, num_tokens - 1, plan)

    def _num_tokens(self, group: SequenceGroup, budget: int) -> int:
        """Tokens that the group computes in this iteration."""
        if group.status is SequenceStatus.FINISHED:  # its last iteration is in flight
            return 0
        if group.todo:
            wanted = group.todo[0].new
        else:
            wanted = 1 + self._proposed.get(group.request.request_id, 0)
        fitting = self.max_len - 1 - _num_computed(group)
        return min(wanted, self.chunks.max_chunk_tokens, budget, fitting)

    def _ensure_slots(
        self, group: SequenceGroup, num_tokens: int, running: list[SequenceGroup], plan: Plan
    ) -> bool:
        """Give the group slots for num_tokens more tokens and the look-ahead, preempting the last
        until it has them; False where it was the last itself.
        """
        needed = _num_computed(group) + num_tokens + self.speculation.num_lookahead
        while not self.state.ensure_slots(group.sequences, min(needed, self.max_len), plan):
            victim = running.pop()
            self._proposed.pop(victim.request.request_id, None)
            preempt_group(self.state, self.preemption, victim, plan)
            if victim is group:
                return False
        return True

    def _schedule_draft(self, group: SequenceGroup, num_drafts: int, plan: Plan) -> None:
        request_id, seq = group.request.request_id, group.sequences[0]
        plan.drafts.append(Draft(group, seq, num_drafts))
        self._proposed.pop(request_id, None)
        self._note_findable(group)

    def _note_findable(self, group: SequenceGroup) -> None:
        """All tokens of the group are known when it is scheduled."""
        if not self.release.hashes_results:
            self._speculating.findable[group.request.request_id] = group.prefill_len

    def carry_out(self, plan: Plan, steps: int, results: Results) -> Outcome:
        outcome = super().carry_out(plan, steps, results)
        verified = [self._verify(draft, results) for draft in plan.drafts]
        self._propose(plan, [*verified, *outcome.first_tokens], results.found)
        ended = [group for group in verified if group.status is SequenceStatus.FINISHED]
        return outcome._replace(finished=[*ended, *outcome.finished])

    def _verify(self, draft: Draft, results: Results) -> SequenceGroup:
        """The newest token and the accepted drafts are stored, and the next token is there."""
        group, seq = draft.group, draft.seq
        request_id = group.request.request_id
        num_new = 1 + results.accepted[request_id]
        self.counts.add(draft.num_drafts, num_new - 1)
        seq.num_stored += num_new
        group.generate(num_new)
        if request_id in results.ended:
            self.finish(group)
        elif not self.speculation.keeps_slots:
            self._speculating.return_rejected(seq)
        return group

    def finish(self, group: SequenceGroup) -> None:
        self._speculating.hide_unknown(group)
        super().finish(group)

    def _propose(
        self, plan: Plan, groups: list[SequenceGroup], found: Mapping[int, int] = NONE_FOUND
    ) -> None:
        """The drafts that the next iteration may verify of these groups; found: see Results."""
        batch_size = len(plan.drafts) + len(plan.chunks)
        for group in groups:
            if group.status is SequenceStatus.RUNNING:
                request_id = group.request.request_id
                asked = self.speculation.num_drafts(request_id, group.num_generated, batch_size)
                self._proposed[request_id] = min(asked, found.get(request_id, asked))

    def cancel(self, group: SequenceGroup) -> list[SequenceGroup]:
        self._proposed.pop(group.request.request_id, None)
        return super().cancel(group)


class AsyncSpeculatingV1(SpeculatingV1, AsyncVllmV1):
    """The same with asynchronous scheduling: the plan ahead takes each draft in flight for
    accepted, and the results correct it.

    The drafts themselves are not known either when they are scheduled, only their number.
    """

    def __init__(self, policy: MemoryPolicy, preemption: PreemptionRule, **options: Any) -> None:
        super().__init__(policy, preemption, **options)
        _check_ahead(self.speculation)

    def _note_findable(self, group: SequenceGroup) -> None:
        """See `anticipate`: a plan ahead counts tokens that may be rejected."""

    def anticipate(self, plan: Plan, steps: int, ended: tuple[int, ...]) -> Outcome:
        certain = ended if self.ignore_eos else ()
        outcome = VllmV1.carry_out(self, plan, steps, Results(certain))
        for draft in plan.drafts:
            group, _, num_drafts = draft
            if group.request.request_id in certain:
                self.finish(group)
            elif not draft.is_over:
                self._store_unknown(group, 1 + num_drafts)
        for chunk in plan.chunks:
            if chunk.padding and chunk.group.status is SequenceStatus.RUNNING:
                self._store_unknown(chunk.group, chunk.padding)
        self._propose(plan, [*(draft.group for draft in plan.drafts), *outcome.first_tokens])
        self._ahead.prefilled, self._anticipated = outcome.first_tokens, outcome
        return outcome

    def _store_unknown(self, group: SequenceGroup, num_tokens: int) -> None:
        """So many tokens are stored that may be void, and are found by nobody."""
        seq = group.sequences[0]
        self._speculating.findable[group.request.request_id] = seq.num_stored
        seq.num_stored += num_tokens

    def commit(self, plan: Plan, steps: int, results: Results) -> Outcome:
        if self._anticipated is not None:
            for chunk in plan.chunks:
                if chunk.padding and chunk.group.status is SequenceStatus.RUNNING:
                    chunk.seq.num_stored -= chunk.padding
            for draft in plan.drafts:
                if draft.group.request.request_id in results.accepted:
                    self._correct(draft, results)
        return super().commit(plan, steps, results)

    def _correct(self, draft: Draft, results: Results) -> None:
        """The results of a draft that was anticipated; since then its group may have ended, or have
        been preempted.
        """
        group, seq, num_drafts = draft
        accepted = results.accepted[group.request.request_id]
        self.counts.add(num_drafts, accepted)
        if group.status is SequenceStatus.RUNNING:
            seq.num_stored -= num_drafts - accepted
        group.generate(1 + accepted)


def _num_computed(group: SequenceGroup) -> int:
    """Tokens that are stored when the plans in flight have run."""
    return group.todo[0].num_stored if group.todo else group.sequences[0].num_stored


def _check_memory(scheduler: SpeculatingV1, speculation: Speculation) -> None:
    """Refuse what has no model of drafts."""
    memory, rule = scheduler.memory, scheduler.preemption
    if memory.layered is not None or memory.drops_tokens is not None:
        raise InputError(
            f"speculation: {memory.name} gives back what a window has left behind, which rejected "
            f"drafts would need again: not modelled (policy=paged or policy=prefix_caching_v1)"
        )
    if memory.stores_below is not None:
        raise InputError(
            f"speculation: {memory.name} stores prefixes below the GPUs, where drafters have "
            f"nothing: not modelled (policy=prefix_caching_v1)"
        )
    if type(rule) not in (Recompute, RecomputeSingleSwapGroup):
        raise InputError(
            f"speculation: preemption={type(rule).__name__} with drafts is not modelled "
            f"(preemption=recompute)"
        )
    if not speculation.keeps_slots and memory.truncates is None:
        raise InputError(
            f"speculation.keeps_slots=false: {memory.name} takes no slots back from a sequence "
            f"(policy=paged does; or leave keeps_slots out)"
        )


def _check_ahead(speculation: Speculation) -> None:
    """Refuse speculation that the plan ahead would have to know the results for."""
    name = type(speculation).__name__
    if not speculation.drafts_on_gpu:
        raise InputError(
            f"speculation: drafts of {name} are made on the CPU from the results of an iteration, "
            f"so that the next one cannot be planned ahead (scheduler=vllm_v1)"
        )
    if speculation.off_above is not None:
        raise InputError(
            "speculation.off_above: asynchronous scheduling always plans all drafts "
            "(scheduler=vllm_v1, or leave off_above out)"
        )
    if not speculation.keeps_slots:
        raise InputError(
            "speculation.keeps_slots=false: the plan ahead has taken the slots of rejected drafts "
            "again before they are rejected (scheduler=vllm_v1, or leave keeps_slots out)"
        )
