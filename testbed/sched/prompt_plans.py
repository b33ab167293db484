"""The plan of most iterations that compute prompts, in one call: all that run take a step, and the
first requests that wait are admitted. Their prompts are computed whole, or in the chunks of
`ConcurrentPrefills`, of which one may be in prefill already. If none waits, or the first was
refused, it is the step alone.
"""

from typing import TYPE_CHECKING, Any

from testbed.core.sequence import Item, SequenceGroup
from testbed.core.slots import NO_HIT, NO_OPS, CacheHit, Refusal, record
from testbed.sched.group_slots import check_grants
from testbed.sched.plan import Chunk, Plan
from testbed.sched.token_budget import ConcurrentPrefills

if TYPE_CHECKING:
    from testbed.sched.scheduler import IterationLevel


class PromptPlans:
    """Makes such plans for one scheduler, the same as its own `plan`, which makes all others
    (tests/property/test_fused_path.py).
    """

    def __init__(self, scheduler: "IterationLevel") -> None:
        limits, prompts = scheduler.limits, scheduler.prompts
        self._scheduler = scheduler
        self._state = scheduler.state
        self._memory = scheduler.memory
        self._chunks = prompts if isinstance(prompts, ConcurrentPrefills) else None
        self._budget = limits.max_num_batched_tokens
        self._most = limits.max_chunk_tokens or self._budget

    def plan(self) -> Plan | None:
        """The next plan; None if it is another one, or has to make room for a step."""
        state, batch = self._state, self._state.batch
        if state.swapped or state.swap_in_refused or state.partially_preempted is not None:
            return None
        num_forks = state.pending_forks.num_forks
        num_decodes, in_prefill, is_whole = len(batch.sequences), None, False
        if num_decodes != state.num_seqs:
            in_prefill = self._in_prefill(num_decodes)
            if in_prefill is None:
                return None
        elif not state.waiting or state.refused is not None:
            return self._step(num_forks)
        else:
            is_whole = self._is_whole(state.waiting[0], self._budget - num_decodes)
            if not is_whole and self._chunks is None:
                return None
        if self._chunks is not None:
            self._scheduler.limit_chunks()
        plan = Plan()
        if num_decodes and not self._scheduler.step(plan):
            return None
        if num_forks:
            state.pending_forks.move_into(plan)
        if in_prefill is None or self._continue(plan, in_prefill):
            self._admit_all(plan, first_is_whole=is_whole)
        if not plan.chunks:
            self._scheduler.enable_fast_forward(plan)
        return plan

    def _step(self, num_forks: int) -> Plan | None:
        """A plan that only takes a step of the batch, and copies what forks left to copy."""
        state, scheduler, waiting = self._state, self._scheduler, self._state.waiting
        if not state.num_seqs or (
            waiting and not (waiting[0] is state.refused and scheduler.keeps_refused)
        ):
            return None
        plan = Plan()
        if not num_forks:
            plan.promised_steps = state.guaranteed_steps()
        if not scheduler.step(plan):
            return None
        if num_forks:
            state.pending_forks.move_into(plan)
        scheduler.enable_fast_forward(plan)
        return plan

    def _in_prefill(self, num_decodes: int) -> SequenceGroup | None:
        """The group in prefill, if all that run but the last one, a single sequence, decode; None
        if they do not, or if prompts are no chunks.
        """
        if self._chunks is None or self._state.num_seqs != num_decodes + 1:
            return None
        group = next(reversed(self._state.running.values()))
        return group if group.todo else None

    def _is_whole(self, group: SequenceGroup, budget: int) -> bool:
        """True if the prompt of the group, a single sequence, fits whole into the budget."""
        seqs = group.sequences
        prefill_len = seqs[0].prompt_len + group.generated_offset
        return len(seqs) == 1 and prefill_len <= budget and prefill_len <= self._most

    def _continue(self, plan: Plan, group: SequenceGroup) -> bool:
        """Put the next chunk of the group's prompt into the plan; False if it lacks slots, and the
        scheduler has completed the plan.
        """
        assert self._chunks is not None, "a prompt in prefill has chunks"
        seq, left, num_stored = group.todo[0]
        new = min(left, self._chunks.max_chunk_tokens, self._budget - plan.decode_seqs)
        if new > 0:
            if not self._state.ensure_slots([seq], num_stored + new, plan):
                self._scheduler.continue_prefills(plan)
                self._chunks.schedule_prefills(plan)
                return False
            self._state.schedule_chunk(group, new, plan)
        return True

    def _admit_all(self, plan: Plan, *, first_is_whole: bool) -> None:
        """Admit the requests that wait, one after another, until the plan or the memory is full;
        the same as `Prefills.schedule_prefills`, which goes on at the first of several sequences,
        or whose prompt is in no chunks and not computed whole.
        """
        state, prompts, waiting = self._state, self._scheduler.prompts, self._state.waiting
        budget, is_whole = self._budget - plan.decode_seqs, first_is_whole
        if plan.chunks:
            budget -= plan.chunks[0].new  # of the group in prefill
        if self._chunks is not None and self._chunks.asks_again:
            state.memory_released()
        while budget > 0 and waiting and waiting[0] is not state.refused:
            group = waiting[0]
            is_whole = is_whole or self._is_whole(group, budget)
            if not is_whole and (self._chunks is None or len(group.sequences) > 1):
                prompts.schedule_prefills(plan)
                return
            if prompts.is_full_with(group):
                return
            hit, seq = NO_HIT, group.sequences[0]
            num_tokens = seq.prompt_len + group.generated_offset
            if self._memory.publishes is not None:
                hit = self._memory.publishes.lookup(seq)
            if not is_whole:
                num_tokens = prompts.first_tokens(group, budget, hit, plan)
                if not num_tokens:
                    return
            new = self._admit(plan, group, num_tokens, hit, budget)
            is_whole = False
            if isinstance(new, int):
                budget -= new
                continue
            state.refuse(group, new, plan)
            if not new.is_final:
                return

    def _admit(
        self, plan: Plan, group: SequenceGroup, num_tokens: int, hit: CacheHit, budget: int
    ) -> int | Refusal:
        """Admit the request with slots for num_tokens tokens, unless it is refused, and put its
        prompt into the plan, as far as budget and slots go; the tokens that are computed.
        """
        state, memory, [seq] = self._state, self._memory, group.sequences
        seqs = [seq]
        answers: Any
        if memory.publishes is None:
            answers = memory.policy.admit(seqs, num_tokens)
        else:
            answers = memory.publishes.admit(seqs, num_tokens, hit)
        if isinstance(answers, Refusal):
            return answers
        prefill_len = seq.prompt_len + group.generated_offset
        [grant] = check_grants(memory, seqs, prefill_len, answers)
        cached = grant.num_cached
        if group.num_cached < 0 and not group.generated_offset:
            group.num_cached = cached
        past = cached if cached < prefill_len else prefill_len - 1  # the last one is computed
        num_slots = num_tokens if num_tokens > cached else cached
        seq.set_counts(num_slots=num_slots, num_stored=cached)
        group.resident, new, most = seqs, prefill_len - past, budget
        if self._chunks is not None and self._chunks.max_chunk_tokens < most:
            most = self._chunks.max_chunk_tokens
        if grant.ops is not NO_OPS:
            state.order(grant.ops, plan)
        state.begin_running(group)
        if past + new > num_slots or new > most:
            group.todo, new = [record(Item, (seq, new, past))], min(new, most)
            if past + new > num_slots:
                return budget - self._scheduler.prompts.schedule_chunks(group, plan, budget)
            state.schedule_chunk(group, new, plan)
            return new
        plan.chunks.append(record(Chunk, (group, seq, new, past, True, 0)))
        if memory.publishes is not None:
            state.publish(seq, prefill_len)
        return new
