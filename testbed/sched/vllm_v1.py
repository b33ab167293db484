"""The scheduler of vLLM V1 (release 0.19): one token budget, for running requests first, then for waiting ones."""

from testbed.core.errors import InputError
from testbed.core.sequence import SequenceGroup
from testbed.memory.policy import MemoryPolicy
from testbed.sched.concurrent_prompts import ConcurrentPrompts, WholeConcurrentPrompts
from testbed.sched.decoding import decode, resume
from testbed.sched.plan import Plan
from testbed.sched.planned_ahead import PlannedAhead
from testbed.sched.preemption import PreemptionRule
from testbed.sched.scheduler import Scheduler


class VllmV1(Scheduler):
    """At most max_num_batched_tokens tokens and max_num_seqs resident sequences in an iteration.

    Running requests are served in order of admission, decodes and prompts under way alike; who lacks room takes it
    from the last one. An iteration that had to take room back admits nobody. Long prompts are cut by the token
    budget, and by long_prefill_token_threshold tokens where that is above 0. scheduler_reserve_full_isl says that a
    request is admitted only with room for its whole prompt, not just for its first chunk. The release only looks
    whether that room is there, and takes it chunk by chunk; here it is held from admission on, so decodes that would
    have used it up preempt that prompt some iterations sooner.

    Without a threshold at most one prompt is under way, the last that was admitted, so decodes come first. With one,
    decodes come first too: prompts that were admitted before them get what is left of the budget.
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
    ) -> None:
        super().__init__(policy, preemption)
        if max_num_batched_tokens < max_num_seqs:
            raise InputError(
                f"max_num_batched_tokens is {max_num_batched_tokens}; every running sequence gets a token, so it must "
                f"be at least max_num_seqs, which is {max_num_seqs}"
            )
        prompts = WholeConcurrentPrompts if scheduler_reserve_full_isl else ConcurrentPrompts
        self.max_num_batched_tokens = max_num_batched_tokens
        self.prompts = prompts(self.residents, max_num_seqs, long_prefill_token_threshold or max_num_batched_tokens)

    def plan(self) -> Plan:
        residents, prompts = self.residents, self.prompts
        plan = residents.new_plan()
        self.choose_order(residents.waiting)
        decode(residents, plan)
        resume(residents, plan)
        budget = prompts.go_on(plan, self.max_num_batched_tokens - plan.decode_seqs)
        if not plan.took_room:
            prompts.fill(plan, budget)
        self.offer(plan, prompts)
        return plan


class AsyncVllmV1(PlannedAhead, VllmV1):
    """The same with asynchronous scheduling, the release's default.

    ignore_eos says that outputs end at the length that was asked for, as in benchmarks: the plan made ahead knows it
    and leaves them out. Otherwise they end at a token that only the results show, and have taken one step more by then.
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
        ignore_eos: bool,
    ) -> None:
        super().__init__(
            policy,
            preemption,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=max_num_seqs,
            long_prefill_token_threshold=long_prefill_token_threshold,
            scheduler_reserve_full_isl=scheduler_reserve_full_isl,
        )
        self.ignore_eos = ignore_eos

    def end(self, group: SequenceGroup) -> None:
        if self.ignore_eos and group.sequences[0].batch is not None:
            self.residents.leave(group)
        super().end(group)
