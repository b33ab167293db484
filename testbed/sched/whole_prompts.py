"""The plan of most iterations that compute prompts, in one call: they are those of the first
requests that wait, each whole, and all that run take a step with them.
"""

from typing import TYPE_CHECKING, Any

from testbed.core.sequence import SequenceGroup
from testbed.core.slots import NO_HIT, NO_OPS, Refusal, record
from testbed.sched.group_slots import check_grants
from testbed.sched.plan import Chunk, Plan

if TYPE_CHECKING:
    from testbed.sched.scheduler import IterationLevel


class WholePrompts:
    """Makes such plans for one scheduler, the same as its own `plan`, which makes all others
    (tests/property/test_fused_path.py).
    """

    def __init__(self, scheduler: "IterationLevel") -> None:
        limits = scheduler.limits
        self._scheduler = scheduler
        self._state = scheduler.state
        self._memory = scheduler.memory
        self._budget = limits.max_num_batched_tokens
        self._most = limits.max_chunk_tokens or self._budget

    def plan(self) -> Plan | None:
        """The next plan; None if it is another one, or has to make room for a step."""
        state, waiting = self._state, self._state.waiting
        if not waiting or state.refused is not None or state.swap_in_refused:
            return None
        num_decodes = len(state.batch.sequences)
        if (
            (num_decodes != state.num_seqs or state.partially_preempted is not None)
            or (state.swapped or state.beams or state.pending_forks.num_forks)
            or not self._is_whole(waiting[0], self._budget - num_decodes)
        ):
            return None
        if len(waiting) > 1:
            self._scheduler.limit_chunks()
        plan = Plan()
        if num_decodes and not self._scheduler.step(plan):
            return None
        self._admit_all(plan)
        if not plan.chunks:
            self._scheduler.enable_fast_forward(plan)
        return plan

    def _is_whole(self, group: SequenceGroup, budget: int) -> bool:
        """True if the prompt of the group, a single sequence, fits whole into the budget."""
        prefill_len = group.request.prompt_len + group.generated_offset
        return len(group.sequences) == 1 and prefill_len <= budget and prefill_len <= self._most

    def _admit_all(self, plan: Plan) -> None:
        """Admit the requests that wait, one after another, until the plan or the memory is full;
        the same as `Prefills.schedule_prefills`, which goes on at the first prompt that is not
        computed whole.
        """
        state, prompts, waiting = self._state, self._scheduler.prompts, self._state.waiting
        budget, is_whole = self._budget - plan.decode_seqs, True  # the first one, by `plan`
        while waiting:
            group = waiting[0]
            if not (is_whole or self._is_whole(group, budget)):
                prompts.schedule_prefills(plan)
                return
            if prompts.is_full_with(group):
                return
            refusal, is_whole = self._admit(plan, group), False
            if refusal is None:
                budget -= plan.chunks[-1].new
                continue
            state.refuse(group, refusal, plan)
            if not refusal.is_final:
                return

    def _admit(self, plan: Plan, group: SequenceGroup) -> Refusal | None:
        """Admit the request and put its prompt into the plan, unless it is refused."""
        state, memory, seqs, hit = self._state, self._memory, group.sequences[:], NO_HIT
        prefill_len, publishes = group.request.prompt_len + group.generated_offset, memory.publishes
        answers: Any
        if publishes is None:
            answers = memory.policy.admit(seqs, prefill_len)
        else:
            hit = publishes.lookup(group.sequences[0])
            answers = publishes.admit(seqs, prefill_len, hit)
        if isinstance(answers, Refusal):
            return answers
        [grant], seq = check_grants(memory, seqs, prefill_len, answers), group.sequences[0]
        cached = grant.num_cached
        if group.num_cached < 0 and not group.generated_offset:
            group.num_cached = cached
        past = cached if cached < prefill_len else prefill_len - 1  # the last one is computed
        seq.set_counts(num_slots=prefill_len, num_stored=cached)
        group.resident = seqs
        if grant.ops is not NO_OPS:
            state.order(grant.ops, plan)
        state.begin_running(group)
        plan.chunks.append(record(Chunk, (group, seq, prefill_len - past, past, True, 0)))
        if publishes is not None:
            state.publish(seq, prefill_len)
        return None
