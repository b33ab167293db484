"""The scheduler of SGLang (release 0.5.23): prompts first, admitted if what all that run may still
generate fits too.
"""

from collections.abc import Collection
from typing import ClassVar, NamedTuple

from testbed.core.request import Incoming
from testbed.core.sequence import CANCELLED, FINISHED, SequenceGroup
from testbed.core.slots import NO_HIT, CacheHit
from testbed.core.units import Positive, PositiveCount, PositiveTokens
from testbed.memory.policy import MemoryPolicy
from testbed.sched.plan import Outcome, Plan, Results
from testbed.sched.preemption import PreemptionRule
from testbed.sched.scheduler import Scheduler
from testbed.sched.sglang_admission import (
    Admission,
    AdmissionOfFixedOutputs,
    PassLimits,
    Selected,
    Verdict,
)
from testbed.sched.sglang_options import check_chunk, check_retraction, page_size_of
from testbed.sched.sglang_order import order_of
from testbed.sched.sglang_ratio import STEPS_AHEAD, NewTokenRatio
from testbed.sched.sglang_requests import DeclaredOutputs, RetractionOrder

OVER = (FINISHED, CANCELLED)


class Computed(NamedTuple):
    """The groups of an iteration in SGLang's order, of which `prefilled` have their first token."""

    groups: list[SequenceGroup]
    prefilled: Collection[SequenceGroup]


class SGLang(Scheduler):
    """One iteration computes prompts, or a decode of all that run, or with mixed chunks both.

    The options have the names of SGLang's command line; experiments/conf/scheduler/sglang.yaml
    explains them. The policy is `radix`, or `paged` (--disable-radix-cache).

    running: the groups that decode, in the order of SGLang's batch, which breaks ties. last: those
    of the last iteration, if it had prompts: they join `running` when the next is planned. chunked:
    the one prompt that is not complete. is_full: the queue is not asked until a request leaves the
    batch (batch_is_full).
    """

    synchronous_by: ClassVar[str] = "--disable-overlap-schedule"
    names_victims: ClassVar[bool] = True
    loads_hits: ClassVar[bool] = True

    def __init__(
        self,
        policy: MemoryPolicy,
        preemption: PreemptionRule,
        *,
        max_running_requests: PositiveCount,
        max_prefill_tokens: PositiveTokens = 16384,
        chunked_prefill_size: PositiveTokens | None = None,
        enable_mixed_chunk: bool = False,
        prefill_max_requests: PositiveCount | None = None,
        schedule_policy: str = "fcfs",
        schedule_conservativeness: Positive = 1.0,
        new_token_ratio_decay_steps: PositiveCount = 600,
        enable_priority_scheduling: bool = False,
        schedule_low_priority_values_first: bool = False,
        retraction_policy: str = "length",
        ignore_eos: bool = False,
        context_length: PositiveTokens | None = None,
    ) -> None:
        super().__init__(policy, preemption)
        self.page_size = page_size_of(self.memory)
        check_chunk(chunked_prefill_size, self.page_size)
        check_retraction(retraction_policy, by_priority=enable_priority_scheduling)
        self.max_running_requests = max_running_requests
        self.pass_limits = PassLimits(
            max_prefill_tokens, chunked_prefill_size, prefill_max_requests
        )
        self.mixes = enable_mixed_chunk and chunked_prefill_size is not None
        self.ignore_eos = self.ends_at_declared = ignore_eos
        self.ratio = NewTokenRatio(schedule_conservativeness, new_token_ratio_decay_steps)
        self.outputs = DeclaredOutputs(policy.usage().total, self.page_size, context_length)
        sign = 1 if schedule_low_priority_values_first else -1
        by_priority = sign * enable_priority_scheduling
        self.order = order_of(
            schedule_policy, self.memory, self.outputs, self.page_size, by_priority
        )
        self.by_priority = enable_priority_scheduling
        self.retracts = RetractionOrder(self.outputs, -sign * (retraction_policy == "priority"))
        self._begin()

    def _begin(self) -> None:
        """A server without requests."""
        self.running: list[SequenceGroup] = []
        self.last: list[SequenceGroup] = []
        self.chunked: SequenceGroup | None = None
        self.is_full = False
        self._planned: list[SequenceGroup] = []  # what the plan computes, in SGLang's order
        self._published = 0  # tokens of the chunked prompt
        self._num_queued = 0
        # Tokens of the last prompts, and of those from which the running batch began: SGLang counts
        # these again in each of its decodes (run_batch, extend_num_tokens)
        self._tokens_of_last = self._tokens_of_running = 0
        self._has_samples = False

    def max_output_len(self, prompt_len: int) -> int | None:
        return max(self.outputs.most(prompt_len), 1)  # a token is generated in any case

    def columns_read(self) -> tuple[str, ...]:
        return (*["priority"] * self.by_priority, *["max_new_tokens"] * self.ignore_eos)

    # A plan

    def plan(self) -> Plan:
        plan = self.new_plan()
        self._publish_chunk()
        self._merge_last()
        self._planned = []
        if not self._prefill(plan):
            self._decode(plan)
        if plan.is_idle and not self._is_computing():
            self.ratio.reset()
        self._enable_fast_forward(plan)
        return plan

    def _is_computing(self) -> bool:
        """True if an iteration has begun whose results are not known."""
        return False

    def _publish_chunk(self) -> None:
        """Publishes the computed part of the unfinished prompt (stash_chunked_request)."""
        if self.chunked is not None and self.chunked.status in OVER:
            self.chunked = None
        if self.chunked is not None:
            seq = self.chunked.sequences[0]
            if seq.num_stored > self._published:
                self.state.publish(seq, seq.num_stored)
                self._published = seq.num_stored

    def _merge_last(self) -> None:
        """The prompts of the last iteration decode from now on; requests that have ended leave."""
        last = self.last
        joining = [
            group for group in last if group is not self.chunked and group.status not in OVER
        ]
        self.last = []
        if len(joining) < len(last):
            self.is_full = False
        if joining and not self.running:
            self.running, self.is_full = joining, False
            self._tokens_of_running = self._tokens_of_last
        else:
            self.running += joining
        self._leave([group for group in self.running if group.status in OVER])

    def _leave(self, leaving: Collection[SequenceGroup]) -> None:
        """These groups are in the batch no more, so that the queue may be asked."""
        if leaving:
            self.running = [group for group in self.running if group not in leaving]
            self.is_full = False

    # Prompts

    def _prefill(self, plan: Plan) -> bool:
        """Schedule prompts, and with mixed chunks a decode; False if there are none for now."""
        if not self.running:
            self.is_full = False
        if self.chunked is None:
            num_left = self.max_running_requests - len(self.running)
            self.is_full = self.is_full or (bool(self.state.waiting) and num_left <= 0)
            if self.is_full or not self.state.waiting:
                return False
        self._reject_groups(plan)
        self.order.sort(self.state.waiting)
        admission = self._admission()
        if self.chunked is not None:
            left = self.chunked.todo[0].new
            limit = self.order.chunk_limit(left, admission.chunk_left or 0)
            admission.go_on(self.chunked, NO_HIT, limit)
        self._ask_queue(admission)
        if not admission.selected:
            self._reject_head(plan)
            return False
        self._allocate(admission.selected, plan)
        if not self._planned:
            return False
        if self.mixes and self.running:
            self._mix(plan)
        self.last = self._planned
        self._tokens_of_last = sum(chunk.new for chunk in plan.chunks) + plan.decode_seqs
        self.order.computed(self._tokens_of_last)
        return True

    def _admission(self) -> Admission:
        """A pass with all its budgets."""
        is_fixed = self.ignore_eos and self.memory.publishes is None
        admission = (AdmissionOfFixedOutputs if is_fixed else Admission)(
            self.memory,
            self.outputs,
            self.page_size,
            self.pass_limits,
            len(self.running) if self.mixes else 0,
        )
        admission.reserve_future(self.running, 1.0 if self.ignore_eos else self.ratio.current)
        return admission

    def _ask_queue(self, admission: Admission) -> None:
        """Select from the head of the queue until one is refused, for whatever reason."""
        for group in self.state.waiting:
            if admission.verdict() is Verdict.SPENT:
                return
            num_left = self.max_running_requests - len(self.running)
            self.is_full = self.is_full or len(admission.selected) >= num_left
            if self.is_full:
                return
            verdict = admission.ask(group, self._match(group))
            if verdict is Verdict.FULL:
                self.is_full = bool(admission.selected or self.running)
            if verdict is not Verdict.GOES_ON:
                return

    def _match(self, group: SequenceGroup) -> CacheHit:
        """The part of the group's tokens, but for the last one, that the tree has."""
        pins = self.memory.pins_hits
        return NO_HIT if pins is None else pins.match(group.sequences[0], group.prefill_len - 1)

    def _allocate(self, selected: list[Selected], plan: Plan) -> None:
        """Slots for all that the pass has selected, after what lacks was evicted at once."""
        new = sum(chosen.new for chosen in selected)
        per_request = self.page_size if self.page_size > 1 else 0
        self._make_free(new + per_request * len(selected))
        for chosen in selected:
            if chosen.group is self.chunked:
                self._continue_chunk(chosen, plan)
            elif not self._admit(chosen, plan):
                break
        for chosen in selected:
            self._unpin(chosen.hit)
        unfinished = [group for group in self._planned if group.todo]
        self.chunked = unfinished[0] if unfinished else None

    def _admit(self, chosen: Selected, plan: Plan) -> bool:
        """Admit the head of the queue; False if the policy, which may keep a share of the pool
        free, refuses it all the same.
        """
        group, new, cached, hit, is_chunk = chosen
        if not isinstance(self.state.admit(group, cached + new, plan, hit), list):
            self.is_full = bool(self._planned or self.running)
            return False
        self._planned.append(group)
        new = min(new, group.todo[0].new)  # less, behind a registered prefix
        self.state.cut_chunk(group, new, plan)
        if is_chunk:
            self._published = cached
        return True

    def _unpin(self, hit: CacheHit) -> None:
        if self.memory.pins_hits is not None and hit is not NO_HIT:
            self.memory.pins_hits.unpin(hit)

    def _continue_chunk(self, chosen: Selected, plan: Plan) -> None:
        """The next chunk; if SGLang would end for lack of memory, the prompt is retracted."""
        group, new, num_stored, _, _ = chosen
        if self.state.ensure_slots(group.sequences, num_stored + new, plan):
            self._planned.append(group)
            self.state.cut_chunk(group, new, plan)
        else:
            self._retract(group, plan)

    def _mix(self, plan: Plan) -> None:
        """All that run take a step with the prompts, unless memory lacks: then they wait."""
        self._leave_out_last_tokens()
        if not self.running:
            return
        if self.step(plan):
            self._planned += self.running
            self.running = []
        else:
            self._make_free(self.state.policy.usage().total)

    def _reject_groups(self, plan: Plan) -> None:
        """SGLang serves every sample as a request of its own: several together never run."""
        if not self._has_samples:
            return
        self._has_samples = False
        for group in [group for group in self.state.waiting if len(group.sequences) > 1]:
            self.state.waiting.remove(group)
            plan.reject(group, "SGLang serves each sequence as a request of its own")

    def _reject_head(self, plan: Plan) -> None:
        """Nothing runs or is written, and the head of the queue is refused: SGLang would ask it for
        ever.
        """
        is_over = not (
            self.running or self.outputs.in_flight or self.state.policy.usage().in_transit
        )
        if self.state.waiting and is_over:
            group = self.state.waiting.popleft()
            plan.reject(group, "its tokens and a page are not less than the whole pool")

    # Decodes

    def _decode(self, plan: Plan) -> None:
        """All that run take a step; while memory lacks, requests are retracted
        (update_running_batch).
        """
        leaving = self._leave_out_last_tokens()
        if not self.running:
            self.is_full = False
            return
        if self.step(plan):
            self.ratio.decay(1)
        else:
            self._make_free(self.state.policy.usage().total)
            self.is_full = False
            if leaving:
                return  # what ends now gives slots back
            self._retract_until_step(plan)
        self._planned = list(self.running)
        self.order.computed(self._tokens_of_running)

    def _leave_out_last_tokens(self) -> list[SequenceGroup]:
        """Groups whose last token by their declared length is in flight: they take no step."""
        ending = [group for group in self.running if self.outputs.ends_in_flight(group)]
        for group in ending:
            self.state.leave_batch(group)
        self._leave(ending)
        return ending

    def _retract_until_step(self, plan: Plan) -> None:
        """Retract at least one; the order of the others is that of the batch from now on
        (retract_decode).
        """
        self.retracts.sort(self.running)
        retracted, stepped = [], False
        while len(self.running) > 1 and not stepped:
            retracted.append(group := self.running.pop())
            self._retract(group, plan)
            self._make_free(len(self.running) * STEPS_AHEAD)
            stepped = self.step(plan)
            if not stepped:
                self._make_free(self.state.policy.usage().total)
        if not stepped:
            self._abort_last(plan)
        outputs = self.outputs
        generated = sum(outputs.generated(group) for group in self.running)
        declared = sum(outputs.declared(group) for group in self.running)
        self.ratio.retracted(self.running, generated, declared)

    def _retract(self, group: SequenceGroup, plan: Plan) -> None:
        """The group loses its slots and waits behind all others; a token in flight is lost."""
        self.state.leave_batch(group)
        if group in self.outputs.in_flight:
            self.outputs.in_flight.remove(group)
            group.generate(-1)
        plan.preempted.append(group)
        self.state.preempt_by_recompute(group)
        self.state.waiting.append(self.state.waiting.popleft())
        self._enqueue(group)

    def _abort_last(self, plan: Plan) -> None:
        """The only group left lacks memory, which an unfinished prompt has."""
        group = self.running.pop()
        self.state.remove(group, CANCELLED)
        plan.reject(group, "retracting all others leaves too little memory for its next token")

    # Results of an iteration

    def add(self, request: Incoming) -> SequenceGroup:
        group = super().add(request)
        self._enqueue(group)
        self._has_samples |= len(group.sequences) > 1
        return group

    def _enqueue(self, group: SequenceGroup) -> None:
        """Note when the group has joined the queue."""
        self._num_queued += 1
        group.rank = (self._num_queued, 0)
        self.order.joined(group)

    def cancel(self, group: SequenceGroup) -> list[SequenceGroup]:
        self.outputs.in_flight.discard(group)
        return super().cancel(group)

    def commit(self, plan: Plan, steps: int, results: Results) -> Outcome:
        outcome = self.carry_out(plan, steps, results)
        self._end_loads(self._planned)
        self._settle(Computed(self._planned, outcome.first_tokens), outcome.finished)
        return outcome

    def carry_out(self, plan: Plan, steps: int, results: Results) -> Outcome:
        if plan.decode_seqs and not plan.chunks:
            self.ratio.decay(steps - 1)
            self.order.computed((steps - 1) * self._tokens_of_running)
        return super().carry_out(plan, steps, results)

    def finish(self, group: SequenceGroup) -> None:
        """The group is answered; its slots come back in the order of the batch."""
        self.state.leave_batch(group)
        group.status = FINISHED

    def _end_loads(self, computed: Collection[SequenceGroup]) -> None:
        """The iteration that has computed these groups has ended, and what it loaded is there."""
        if self.memory.loads_hits is not None:
            for group in computed:
                self.memory.loads_hits.end_load(group.sequences[0])

    def _settle(self, computed: Computed, finished: Collection[SequenceGroup]) -> None:
        """Publish what was computed in the order of the batch: prompts, and of those that have
        ended the answers too (process_batch_result).
        """
        for group in computed.groups:
            if group in finished:
                self._end(group)
            elif group in computed.prefilled:
                self.state.publish(group.sequences[0], group.sequences[0].num_stored)

    def _end(self, group: SequenceGroup) -> None:
        seq = group.sequences[0]
        self.state.publish(seq, min(seq.num_slots, seq.prompt_len + group.num_generated))
        self.state.release(group, FINISHED)

    def _enable_fast_forward(self, plan: Plan) -> None:
        """Offer further decodes: until a request ends or arrives, none is admitted."""
        if self.order.counts_steps:
            return
        if not plan.repeats or plan.preempted_any or (self.state.waiting and not self.is_full):
            return
        plan.ends_on_arrival = not self.is_full
        plan.guaranteed_steps = self.state.guaranteed_steps()

    def _make_free(self, num_slots: int) -> None:
        if self.memory.pins_hits is not None:
            self.memory.pins_hits.make_free(num_slots)
