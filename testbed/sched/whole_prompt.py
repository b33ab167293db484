"""The plan of most iterations that compute a prompt, in one call: one request waits, its prompt is
computed whole in the next iteration, and all that run take a step with it.
"""

from typing import TYPE_CHECKING, Any

from testbed.core.slots import NO_HIT, NO_OPS, Refusal, record
from testbed.sched.group_slots import check_grants
from testbed.sched.plan import Chunk, Plan

if TYPE_CHECKING:
    from testbed.sched.scheduler import IterationLevel


class WholePrompt:
    """Makes such plans for one scheduler, the same as its own `plan`, which makes all others
    (tests/property/test_fused_path.py).
    """

    def __init__(self, scheduler: "IterationLevel") -> None:
        limits = scheduler.limits
        self._scheduler = scheduler
        self._state = scheduler.state
        self._memory = scheduler.memory
        self._most = limits.max_chunk_tokens or limits.max_num_batched_tokens

    def plan(self) -> Plan | None:
        """The next plan; None if it is another one, or has to make room for a step."""
        state, waiting = self._state, self._state.waiting
        if len(waiting) != 1 or state.refused is not None or state.swap_in_refused:
            return None
        group, num_decodes = waiting[0], len(state.batch.sequences)
        prefill_len = group.request.prompt_len + group.generated_offset
        if (
            (num_decodes != state.num_seqs or num_decodes + prefill_len > self._most)
            or (state.swapped or state.beams or state.pending_forks.num_forks)
            or (len(group.sequences) > 1 or group is state.partially_preempted)
            or self._scheduler.prompts.is_full_with(group)
        ):
            return None
        plan = Plan()
        if num_decodes and not self._scheduler.step(plan):
            return None
        refusal = self._admit(plan, prefill_len)
        if refusal is not None:
            state.refuse(group, refusal, plan)
            self._scheduler.enable_fast_forward(plan)
        return plan

    def _admit(self, plan: Plan, prefill_len: int) -> Refusal | None:
        """Admit the request and put its prompt into the plan, unless it is refused; the same as
        `Prefills.schedule_prefills`.
        """
        state, memory, group = self._state, self._memory, self._state.waiting[0]
        seqs, publishes, hit = group.sequences[:], memory.publishes, NO_HIT
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
