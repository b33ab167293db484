"""The meter of whole spans: never-used slots are counted in closed form, by the steps at which they
begin.
"""

import heapq
from itertools import count
from operator import attrgetter

from testbed.core.errors import PlugInError
from testbed.core.sequence import RUNNING, SequenceGroup
from testbed.core.slots import (
    NO_GROWTH,
    Footprint,
    Grant,
    Granular,
    Growth,
    Usage,
    is_footprint,
    record,
)
from testbed.cost.model import UNBOUNDED, Affine
from testbed.engine.executor import Flight
from testbed.engine.meter import Meter
from testbed.engine.outputs import Outputs
from testbed.engine.totals import NO_CHANGE, SharedSlots, SpanAccount, SpanGrowth, SpanMemory
from testbed.sched.plan import Outcome, Plan, wrong_answer
from testbed.sched.scheduler import Scheduler

SLOTS_OFFSET = attrgetter("slots_offset")


class Tracked:
    """Never-used slots of a resident group, `alive` until it leaves: `active` by now, (from_len,
    slots) to come.
    """

    __slots__ = ("active", "alive", "later")

    def __init__(
        self, footprint: Footprint, final_len: int, num_seqs: int, num_tokens: int
    ) -> None:
        self.active = 0
        self.later: list[tuple[int, int]] = []
        self.alive = True
        for from_len, slots in footprint.waste(final_len):
            if from_len <= num_tokens:
                self.active += slots * num_seqs
            elif from_len < final_len:  # the last token is never stored
                self.later.append((from_len, slots * num_seqs))

    def is_of(self, num_tokens: int) -> bool:
        """True if the group may have grown to num_tokens tokens with as many never-used slots."""
        return not self.later or num_tokens < self.later[0][0]


class SpanMeter(Meter):
    """Integrates whole spans in closed form. Equals the plain meter exactly, for policies that say
    their footprints.

    The never-used slots of a decoding group start to count at known steps of the batch; `_starts`
    orders these steps. `forked` has the groups whose sequences may share their last block, as they
    do from a fork to their next step.
    """

    def __init__(self, scheduler: Scheduler, outputs: Outputs) -> None:
        super().__init__(scheduler, outputs)
        self._decoding = 0  # members of the batch when a plan was opened
        self._tracked: dict[int, Tracked] = {}
        self._starts: list[tuple[int, int, int, Tracked]] = []
        self.forked: dict[int, SequenceGroup] = {}
        self._serial = count()
        self._internal = self._repeated = 0
        self._copies = 0
        self._extended = 0  # the batch's count when a plan was opened whose slots are shared
        self._offsets: list[int] = []  # of its members' slots from this count
        self._round = 0  # steps after which a member takes its next block; 0: not known
        self._footprint: Footprint | None = (
            None  # the last that was looked at: most policies have one for all
        )
        self._slots_per_token = 1

    def open(self, plan: Plan, used: Usage) -> None:
        for group in plan.preempted:
            self.forget(group)
        for chunk in plan.chunks:
            self._track(chunk.group)
        for group in plan.swapped_in:
            self._track(group)
        self._repeated = 0
        if plan.swapped_in or (self.forked and not plan.decode_seqs):
            unstepped = () if plan.decode_seqs else self.forked.values()
            self._repeated = sum(map(self._counted_again, (*unstepped, *plan.swapped_in)))
        state = self.state
        running, decoding, num_seqs = len(state.running), len(state.batch.sequences), state.num_seqs
        self._used, self._running, self._decoding = used, running, decoding
        in_prompts = num_seqs != running and num_seqs != decoding  # of groups of several
        self._copies = 0
        if in_prompts:
            self._copies = sum(map(self.copies, self._unforked(num_seqs - decoding)))
        if (used.saved or self._copies) and plan.guaranteed_steps:
            self._note_taken()

    def _unforked(self, num_seqs: int) -> list[SequenceGroup]:
        """The groups whose sequences do not all have slots, of those that run outside the batch,
        with num_seqs sequences in all: prompts, and so mostly the last that were admitted.
        """
        groups = list[SequenceGroup]()
        for group in reversed(self.state.running.values()):
            if group.batch is None:
                num_seqs -= len(group.sequences)
                if len(group.resident) < len(group.sequences):
                    groups.append(group)
            if not num_seqs:
                break
        return groups

    def close(
        self, plan: Plan, durations: Affine, steps: int, duration_ps: int, outcome: Outcome
    ) -> SpanMemory:
        state, starts, used, started = self.state, self._starts, self._used, NO_GROWTH
        growth = NO_CHANGE
        if plan.decode_seqs and starts and starts[0][0] < state.batch.steps:
            started = self._start(state.batch.steps, steps)
        if steps == 1:
            internal = self._internal + started.slots - self._repeated
        else:
            internal = self._internal
            growth = self._growth(self._decoding, started, outcome.grown)
            used = used._replace(live=used.live - self._decoding * self._slots_per_token)
        saved = used.saved + self._copies
        shared: tuple[SharedSlots, ...] = ()
        if saved:
            shared = self._shared(steps, durations, saved, self._used.held, outcome.grown)
        self._internal += started.slots
        if plan.decode_seqs and (self.forked or state.beams):
            self.forked = dict(state.beams)
        for group in outcome.finished:
            self.forget(group)
        if plan.chunks or plan.swapped_in:
            for group in outcome.first_tokens + plan.swapped_in:
                if group.status is RUNNING:
                    self._joined(group)
        return record(SpanMemory, (self._running, used, internal, self._copies, growth, shared))

    def begin_chunks(self, plan: Plan) -> None:
        """`open` for a plan of the fused path (fused_path.py), which has chunks."""
        for group, _, _, _, _, _ in plan.chunks:
            tracked = self._tracked.get(group.request_id)
            # In no batch, so that its `slots_offset` is `num_slots`
            if tracked is None or not tracked.is_of(group.sequences[0].slots_offset):
                self._track(group)
        self._repeated = self._copies = 0

    def begin_shared(self) -> None:
        """A span of promised steps begins in which slots are shared."""
        self._copies = 0
        self._note_taken()

    def _note_taken(self) -> None:
        """Note the slots of the batch's members, which say when they take more (`_steps_taking`).
        It walks the batch, and only if slots are shared: an index of the meter's would lie on the
        batch, where policies could reach it and, behind it, the future.
        """
        batch, self._round = self.state.batch, self._block_size()
        self._extended = batch.extended
        self._offsets = [*map(SLOTS_OFFSET, batch.sequences.values())]

    def close_decodes(self, flight: Flight, grown: Grant) -> SpanAccount:
        """`close` for a plan of the fused path that only decodes; forgets those of its groups that
        have ended.
        """
        usage, steps, started, growth = flight.usage, flight.steps, NO_GROWTH, NO_CHANGE
        starts, end, growing = self._starts, self.state.batch.steps, flight.growing
        shared: tuple[SharedSlots, ...] = ()
        if starts and starts[0][0] < end:
            started = self._start(end, steps)
        internal = self._internal
        if started is not NO_GROWTH:
            self._internal += started.slots
        if self.forked or self.state.beams:
            self.forked = dict(self.state.beams)
        if flight.saved:
            first = 0 if flight.is_promised else 1
            shared = self._shared(steps, flight.durations, flight.saved, usage.held, grown, first)
        if flight.is_promised:
            growth = self._growth(growing, started, grown, 0)
        elif steps > 1:
            growth = self._growth(growing, started, grown)
            usage = usage._replace(live=usage.live - growing * self._slots_per_token)
        else:
            internal += started.slots
        return flight.num_running, usage, internal, 0, growth, shared

    def close_prompts(
        self, flight: Flight, first_tokens: list[SequenceGroup], finished: list[SequenceGroup]
    ) -> SpanAccount:
        """`close` for a plan of the fused path, which has chunks, with this outcome."""
        starts, usage, state = self._starts, flight.usage, self.state
        shared: tuple[SharedSlots, ...] = ()
        decodes, saved = flight.plan.decode_seqs, flight.saved
        if decodes and starts and starts[0][0] < state.batch.steps:
            started = self._start(state.batch.steps, 1)
            self._internal += started.slots
        internal = self._internal
        for group in finished:
            self.forget(group)
        if decodes and state.beams:
            self.forked = dict(state.beams)
        for group in first_tokens:
            if group.status is RUNNING:
                self._joined(group)
        if saved:
            duration_ps = flight.end_ps - flight.start_ps
            shared = (record(SharedSlots, (usage.held, saved, saved * duration_ps)),)
        return flight.num_running, usage, internal, 0, NO_CHANGE, shared

    def max_steps(self, used: Usage) -> int:
        """While slots are shared it must know when each step takes some, which only whole blocks
        give.
        """
        saved = used.saved + self._copies
        return UNBOUNDED if not saved or self._round else 1

    def _block_size(self) -> int:
        """The size of the blocks in which the batch's members grow; 0 if they do not grow in
        blocks.
        """
        footprint = self.memory.footprint(next(iter(self.state.batch)))
        return footprint.size if isinstance(footprint, Granular) else 0

    def _shared(
        self, steps: int, durations: Affine, saved: int, held: int, grown: Grant, first: int = 1
    ) -> tuple[SharedSlots, ...]:
        """The iterations of a span in which slots are shared, by the slots that they hold; nothing
        is shared or copied within one. held: slots of the pool before iteration `first`, the first
        one that takes some.
        """
        before, begin, (first_ps, growth_ps, _) = held, 0, durations
        if grown.growth == NO_GROWTH:
            span_ps = steps * first_ps + growth_ps * (steps * (steps - 1) // 2)
            return (record(SharedSlots, (held, saved * steps, saved * span_ps)),)
        slots = self._round * self._slots_per_token
        rows: list[SharedSlots] = []
        for step in self._steps_taking(steps - first):
            if (end := step + first) > begin:
                span_ps = (end - begin) * (2 * first_ps + growth_ps * (begin + end - 1)) // 2
                rows.append(record(SharedSlots, (held, saved * (end - begin), saved * span_ps)))
            held, begin = held + slots, end
        span_ps = (steps - begin) * (2 * first_ps + growth_ps * (begin + steps - 1)) // 2
        rows.append(record(SharedSlots, (held, saved * (steps - begin), saved * span_ps)))
        if (whole := held - before) != grown.growth.slots:
            name = type(self.policy).__name__
            raise PlugInError(
                f"{name} took {grown.growth.slots} slots if whole blocks would take {whole}"
            )
        return tuple(rows)

    def _steps_taking(self, num_steps: int) -> list[int]:
        """The steps, of num_steps from the noted ones on, at which members take slots, in order;
        none if they do not grow in blocks.
        """
        extended, size = self._extended, self._round
        if not size:
            return []
        first_steps = [-(offset + extended) % size for offset in self._offsets]
        return sorted(
            [
                step
                for first in first_steps
                if first < num_steps
                for step in range(first, num_steps, size)
            ]
        )

    def _growth(
        self, decode_seqs: int, started: Growth, grown: Grant, first: int = 1
    ) -> SpanGrowth:
        """The changes in a span; first: the iteration whose slots `grown` begins with."""
        _, _, held, evicted, _ = grown
        live = decode_seqs * self._slots_per_token
        for growth in (held,) if evicted is NO_GROWTH else (held, evicted):
            slots, slot_steps, squared = growth
            if not type(slots) is type(slot_steps) is type(squared) is int:
                raise wrong_answer(self.policy, growth, "a Growth has whole numbers (int)")
        if first:
            held, evicted = held.one_step_later(), evicted.one_step_later()
        return (live, *started, *held, *evicted)

    def _track(self, group: SequenceGroup) -> Tracked:
        request_id, first = group.request_id, group.sequences[0]
        if request_id in self._tracked:
            self.forget(group)
        predicts = self.memory.predicts
        footprint = None if predicts is None else predicts.footprint(first)
        if footprint is None or footprint is not self._footprint:
            if footprint is None or not is_footprint(footprint):
                kinds = "footprint() gives a Fixed, Granular or Stepped of whole numbers"
                raise wrong_answer(self.policy, footprint, kinds)
            self._slots_per_token = (
                footprint.slots_per_token if isinstance(footprint, Granular) else 1
            )
            self._footprint = footprint
        num_slots: object = first.num_slots
        if type(num_slots) is not int:
            raise wrong_answer(
                self.policy, num_slots, "num_slots is a whole number, of the type int itself"
            )
        final_len = first.prompt_len + self.outputs.lengths[request_id]
        tracked = Tracked(footprint, final_len, len(group.resident), num_slots)
        self._tracked[request_id] = tracked
        self._internal += tracked.active
        return tracked

    def joined(self, group: SequenceGroup) -> None:
        self._track(group)
        self._joined(group)

    def _joined(self, group: SequenceGroup) -> None:
        tracked = self._tracked[group.request_id]
        if len(group.sequences) > 1:
            tracked = self._track(group)
            self.forked[group.request_id] = group
        if not tracked.later:
            return
        batch, offset = self.state.batch, group.sequences[0].slots_offset
        before = batch.steps - batch.extended - offset - 1  # `num_slots` tokens are there now
        for from_len, slots in tracked.later:
            start = before + from_len
            heapq.heappush(self._starts, (start, next(self._serial), slots, tracked))

    def _counted_again(self, group: SequenceGroup) -> int:
        """Never-used slots that are counted for each of the sequences that share them, but for the
        first.
        """
        tracked = self._tracked.get(group.request_id)
        return tracked.active - self.unused(group) if tracked is not None and tracked.active else 0

    def forget(self, group: SequenceGroup) -> None:
        tracked = self._tracked.pop(group.request_id, None)
        if tracked is not None:
            self.forked.pop(group.request_id, None)
            tracked.alive = False
            self._internal -= tracked.active

    def _start(self, end: int, steps: int) -> Growth:
        """Slots that begin to count in the `steps` steps before batch step `end`, by step of the
        span.
        """
        starts, begin = self._starts, end - steps
        total = slot_steps = slot_steps_squared = 0
        while starts and starts[0][0] < end:
            step, _, slots, tracked = heapq.heappop(starts)
            if tracked.alive:
                tracked.active += slots
                total += slots
                slot_steps += slots * (step - begin)
                slot_steps_squared += slots * (step - begin) ** 2
        return record(Growth, (total, slot_steps, slot_steps_squared))
