"""Splits the pool as section 3.1 does. A meter knows the true lengths; a policy need not."""

import heapq
from abc import ABC, abstractmethod
from itertools import count
from typing import TypeAlias

from testbed.core.errors import PlugInError
from testbed.core.sequence import SequenceGroup, SequenceStatus
from testbed.core.slots import NO_GROWTH, Footprint, Grant, Growth, Usage, growth_of
from testbed.cost.model import Affine
from testbed.sched.plan import Outcome, Plan
from testbed.sched.scheduler import Scheduler
from testbed.sim.outputs import Outputs
from testbed.sim.totals import NO_CHANGE, Seen

Span: TypeAlias = tuple[int, int, int, int]  # steps, duration_ps, and first_ps, growth_ps of their affine durations


class Meter(ABC):
    """Sees every plan before it runs, and every outcome before the next plan."""

    def __init__(self, scheduler: Scheduler, outputs: Outputs) -> None:
        self.policy = scheduler.policy
        self.residents = scheduler.residents
        self.outputs = outputs

    @abstractmethod
    def open(self, plan: Plan, used: Usage) -> None:
        """Look at the pool as the first iteration of this plan sees it; `used` is the policy's own account of it."""

    @abstractmethod
    def close(self, plan: Plan, prices: Affine, steps: int, duration_ps: int, outcome: Outcome) -> Seen:
        """What the `steps` iterations saw that were carried out, in duration_ps."""


def seen(running: int, used: Usage, internal: int, changes: tuple[int, ...] = NO_CHANGE) -> Seen:
    """What the iterations of a span see whose first one finds `internal` slots that will never be used."""
    _, live, held, allocated, cached, free, largest_free, saved = used
    reserved, rounding, scattered = held - live - internal, allocated - held, free + cached - largest_free
    return running, live, reserved, internal, saved, cached, rounding, scattered, *changes


class PlainMeter(Meter):
    """Walks every table before every iteration: slow, obvious, right for any policy."""

    def open(self, plan: Plan, used: Usage) -> None:
        internal = 0
        for group in self.residents.running.values():
            final_len = self.outputs.requests[group.request.request_id].final_len
            for seq in group.resident:
                slots = sum(extent.length for extent in self.policy.table(seq))
                internal += max(0, slots - final_len)
        self._seen = seen(len(self.residents.running), used, internal)

    def close(self, plan: Plan, prices: Affine, steps: int, duration_ps: int, outcome: Outcome) -> Seen:
        if steps != 1:
            raise ValueError("the plain meter measures one iteration at a time")
        return self._seen


class Tracked:
    """A resident group's never-used slots: `active` ones by now, and (from_len, slots) of those to come.

    They count until the group leaves: `alive` is false then.
    """

    __slots__ = ("active", "alive", "later")

    def __init__(self, footprint: Footprint, final_len: int, num_seqs: int, num_tokens: int) -> None:
        self.active = 0
        self.later: list[tuple[int, int]] = []
        self.alive = True
        for from_len, slots in footprint.waste(final_len):
            if from_len <= num_tokens:
                self.active += slots * num_seqs
            else:
                self.later.append((from_len, slots * num_seqs))


class SpanMeter(Meter):
    """Integrates whole spans in closed form. Equals the plain meter exactly, for policies that say their footprints.

    The never-used slots of a decoding group start to count at known steps of the batch; `_starts` orders these steps.
    """

    def __init__(self, scheduler: Scheduler, outputs: Outputs) -> None:
        super().__init__(scheduler, outputs)
        self._tracked: dict[int, Tracked] = {}
        self._starts: list[tuple[int, int, int, Tracked]] = []
        self._serial = count()
        self._internal = 0

    def open(self, plan: Plan, used: Usage) -> None:
        for group in plan.preempted:
            self._forget(group)
        for chunk in plan.chunks:
            self._track(chunk.group)
        for group in plan.resumed:
            self._track(group)
        self._used = used
        self._running = len(self.residents.running)
        self._growing = len(self.residents.batch.sequences)

    def close(self, plan: Plan, prices: Affine, steps: int, duration_ps: int, outcome: Outcome) -> Seen:
        end, starts, started = self.residents.batch.steps, self._starts, NO_GROWTH
        if plan.decode_seqs and starts and starts[0][0] < end:
            started = self._start(end, steps)
        if steps == 1:
            now = seen(self._running, self._used, self._internal + started.slots)
        else:
            span = steps, duration_ps, prices.first_ps, prices.growth_ps
            now = seen(self._running, self._used, self._internal, self._changes(span, started, outcome.grown))
        self._internal += started.slots
        for group in outcome.finished:
            self._forget(group)
        if plan.chunks or plan.resumed:
            for group in (*outcome.first_tokens, *plan.resumed):
                if group.status is SequenceStatus.RUNNING:
                    self._joined(group)
        return now

    def _changes(self, span: Span, started: Growth, grown: Grant) -> tuple[int, ...]:
        """What the second and later iterations see that the first did not."""
        live, live_time = ramp(self._growing, span)
        held, held_time = after(grown.growth, span) if grown.growth.slots else (0, 0)
        internal, internal_time = at(started, span) if started.slots else (0, 0)
        evicted, evicted_time = after(grown.evicted, span) if grown.evicted.slots else (0, 0)
        change = live, held - live - internal, internal, -evicted
        return *change, live_time, held_time - live_time - internal_time, internal_time, -evicted_time

    def _track(self, group: SequenceGroup) -> Tracked:
        """Count what the group holds now and will never use."""
        request_id, first = group.request.request_id, group.sequences[0]
        if request_id in self._tracked:
            self._forget(group)
        footprint = self.policy.footprint(first)
        if footprint is None:
            name = type(self.policy).__name__
            raise PlugInError(f"{name} has no footprint for {first}: answer for all, or leave footprint() out")
        final_len = self.outputs.requests[request_id].final_len
        tracked = Tracked(footprint, final_len, len(group.resident), first.room)
        self._tracked[request_id] = tracked
        self._internal += tracked.active
        return tracked

    def _joined(self, group: SequenceGroup) -> None:
        """The group decodes from the next step on, with all its sequences."""
        tracked = self._tracked[group.request.request_id]
        if len(group.sequences) > 1:
            tracked = self._track(group)
        joined_at, num_tokens = self.residents.batch.steps, group.sequences[0].room
        for from_len, slots in tracked.later:
            heapq.heappush(self._starts, (joined_at + from_len - num_tokens - 1, next(self._serial), slots, tracked))

    def _forget(self, group: SequenceGroup) -> None:
        tracked = self._tracked.pop(group.request.request_id, None)
        if tracked is not None:
            tracked.alive = False
            self._internal -= tracked.active

    def _start(self, end: int, steps: int) -> Growth:
        """What begins to count in the `steps` steps before batch step `end`, by step of the span."""
        starts = self._starts
        events: list[tuple[int, int]] = []
        while starts and starts[0][0] < end:
            step, _, slots, tracked = heapq.heappop(starts)
            if tracked.alive:
                tracked.active += slots
                events.append((step - (end - steps), slots))
        return growth_of(events)


def ramp(slope: int, span: Span) -> tuple[int, int]:
    """Summed over a span's iterations, and integrated over its time: a count that grows by `slope` with each."""
    steps, _, first_ps, growth_ps = span
    pairs = steps * (steps - 1) // 2
    return slope * pairs, slope * (first_ps * pairs + growth_ps * (pairs * (2 * steps - 1) // 3))


def at(growth: Growth, span: Span) -> tuple[int, int]:
    """The same of a count that grows from the iteration of each event on."""
    steps, duration_ps, first_ps, growth_ps = span
    w0, w1, w2 = growth
    return w0 * steps - w1, w0 * duration_ps - w1 * first_ps - growth_ps * ((w2 - w1) // 2)


def after(growth: Growth, span: Span) -> tuple[int, int]:
    """The same of a count that grows from the iteration after each event on."""
    steps, duration_ps, first_ps, growth_ps = span
    w0, w1, w2 = growth
    return w0 * steps - w0 - w1, w0 * duration_ps - (w0 + w1) * first_ps - growth_ps * ((w2 + w1) // 2)
