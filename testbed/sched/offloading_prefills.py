"""Prefills behind what a tier below the device has, as vLLM V1 admits them: a request that loads
holds its slots, and those behind it are served meanwhile.
"""

from collections.abc import Iterator

from testbed.core.sequence import PREFILLING, WAITING, Item, Sequence, SequenceGroup
from testbed.core.slots import GRANTED, NO_HIT, Answer, CacheHit, Grant, Refusal
from testbed.memory.protocols import Offloads
from testbed.sched.plan import Plan, one_answer
from testbed.sched.token_budget import ConcurrentPrefills


class OffloadingPrefills(ConcurrentPrefills):
    """Groups in `state.loading` come first. A waiting group whose hit is being written, or loaded
    for another one, is passed over; one that lacks slots stops all behind it.
    """

    @property
    def _offloads(self) -> Offloads:
        offloads = self.state.memory.offloads
        assert offloads is not None, "made for a policy that offloads"
        return offloads

    def schedule_prefills(self, plan: Plan) -> None:
        if plan.preempted:
            return
        self.state.memory_released()  # a refusal may end with any eviction or landing
        budget = self._begin_loaded(plan, self.budget_left(plan))
        for group in tuple(self.state.waiting):
            if budget <= 0 or self.is_full_with(group):
                return
            hit = self.state.lookup(group)
            answer = self._load(group, hit, plan)
            if answer is Refusal.LATER:
                return
            if isinstance(answer, Grant) and not answer.num_cached:
                budget = self._admit(group, hit, plan, budget)

    def _begin_loaded(self, plan: Plan, budget: int) -> int:
        """Groups whose load has landed are in prefill now; the budget that is left, 0 if one of
        them lacks slots.
        """
        for group in tuple(self.state.loading):
            if budget <= 0 or self.is_full_with(group):
                return 0
            if self._offloads.has_landed(group.sequences[0]):
                budget = self._begin(group, plan, budget)
        return budget

    def _begin(self, group: SequenceGroup, plan: Plan, budget: int) -> int:
        state, seq = self.state, group.sequences[0]
        loaded = seq.num_slots
        state.publish(seq, loaded)
        past = min(loaded, group.prefill_len - 1)
        chunk = min(group.prefill_len - past, self.max_chunk_tokens)
        is_cut = chunk > budget and not self.cuts
        if is_cut or (self.fits_whole and not self._fits(group, NO_HIT)):
            return 0
        if not state.ensure_slots([seq], past + min(chunk, budget), plan):
            return 0
        state.loading.remove(group)
        seq.num_stored = past
        group.todo = [Item(seq, group.prefill_len - past, past)]
        state.add_running(group, PREFILLING)
        return self.schedule_chunks(group, plan, budget)

    def _load(self, group: SequenceGroup, hit: CacheHit, plan: Plan) -> Answer:
        """Begin to load for a waiting group, which leaves the queue then; see Offloads. Groups of
        several sequences load nothing.
        """
        if len(group.sequences) > 1:
            return GRANTED
        state, seq, num_tokens = self.state, group.sequences[0], group.prefill_len
        must_fit = num_tokens if self.fits_whole else 0
        answer = one_answer(
            state.policy,
            self._offloads.load_into_slots(seq, num_tokens, hit, must_fit, self._in_prefill()),
        )
        if isinstance(answer, Grant) and answer.num_cached:
            state.waiting.remove(group)
            state.loading.append(group)
            stored = hit.num_cached(num_tokens)
            seq.set_counts(num_slots=answer.num_cached, num_stored=stored)
            group.resident = [seq]
            if group.num_cached < 0 and not group.num_generated:
                group.num_cached = answer.num_cached
            state.order(answer.ops, plan)
        return answer

    def _admit(self, group: SequenceGroup, hit: CacheHit, plan: Plan, budget: int) -> int:
        """Admit a waiting group, wherever it stands; the budget that is left, 0 if it lacks
        slots.
        """
        waiting = self.state.waiting
        num_tokens = self.first_tokens(group, budget, hit, plan)
        if not num_tokens:
            return 0
        place = waiting.index(group)
        del waiting[place]
        waiting.appendleft(group)
        answer = self.state.admit(group, num_tokens, plan, hit)
        if isinstance(answer, list):
            return self.schedule_chunks(group, plan, budget)
        if answer.is_final:
            return budget
        waiting.remove(group)
        waiting.insert(place, group)
        return 0

    def _in_prefill(self) -> Iterator[tuple[Sequence, int]]:
        """The sequences that have slots for a part of what they must compute first."""
        for group in (*self.state.running.values(), *self.state.loading):
            if group.todo or group.status is WAITING:
                yield group.sequences[0], group.prefill_len
