"""Splits the pool as section 3.1 does. A meter knows the true lengths; a policy need not."""

import heapq
from abc import ABC, abstractmethod
from itertools import count

from testbed.core.errors import PlugInError
from testbed.core.sequence import SequenceGroup, SequenceStatus
from testbed.core.slots import Footprint, Growth, Usage
from testbed.cost.model import Affine
from testbed.sched.plan import Outcome, Plan
from testbed.sched.scheduler import Scheduler
from testbed.sim.outputs import Outputs
from testbed.sim.totals import CACHED, INTERNAL, LIVE, NUM_MEASURES, RESERVED, Sums


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
    def close(self, plan: Plan, prices: Affine, steps: int, duration_ps: int, outcome: Outcome) -> Sums:
        """The measures over the `steps` iterations that were carried out, in duration_ps."""


def seen(running: int, used: Usage, internal: int) -> list[int]:
    """What one iteration sees, in the order of Measures, of a pool with `internal` slots that will never be used."""
    _, live, held, allocated, cached, free, largest_free, saved = used
    return [
        running,
        live,
        held - live - internal,
        internal,
        saved,
        cached,
        allocated - held,
        free + cached - largest_free,
    ]


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

    def close(self, plan: Plan, prices: Affine, steps: int, duration_ps: int, outcome: Outcome) -> Sums:
        if steps != 1:
            raise ValueError("the plain meter measures one iteration at a time")
        return self._seen + [value * duration_ps for value in self._seen]


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

    def close(self, plan: Plan, prices: Affine, steps: int, duration_ps: int, outcome: Outcome) -> Sums:
        started = self._start(self.residents.batch.steps, steps) if plan.decode_seqs else ()
        new = sum([slots for _, slots in started]) if started else 0
        if steps == 1:
            now = seen(self._running, self._used, self._internal + new)
            sums = now + [value * duration_ps for value in now]
        else:
            sums = self._span(prices, steps, duration_ps, started, outcome.growth)
        self._internal += new
        for group in outcome.finished:
            self._forget(group)
        for group in outcome.first_tokens:
            if group.status is SequenceStatus.RUNNING:
                self._joined(group)
        for group in plan.resumed:
            if group.status is SequenceStatus.RUNNING:
                self._joined(group)
        return sums

    def _span(self, prices: Affine, steps: int, duration_ps: int, started: Growth, growth: Growth) -> Sums:
        """The first iteration's measures, times the steps, and what changes on the way."""
        now = seen(self._running, self._used, self._internal)
        sums = [value * steps for value in now] + [value * duration_ps for value in now]
        live, live_time = ramp(self._growing, prices, steps)
        held, held_time = from_steps(growth, 1, prices, steps, duration_ps) if growth else (0, 0)
        internal, internal_time = from_steps(started, 0, prices, steps, duration_ps) if started else (0, 0)
        sums[LIVE] += live
        sums[LIVE + NUM_MEASURES] += live_time
        sums[INTERNAL] += internal
        sums[INTERNAL + NUM_MEASURES] += internal_time
        sums[RESERVED] += held - live - internal
        sums[RESERVED + NUM_MEASURES] += held_time - live_time - internal_time
        if self._used.cached:
            evicted = from_steps(taken_from_cache(growth, self._used.free), 1, prices, steps, duration_ps)
            sums[CACHED] -= evicted[0]
            sums[CACHED + NUM_MEASURES] -= evicted[1]
        return sums

    def _track(self, group: SequenceGroup) -> Tracked:
        """Count what the group holds now and will never use."""
        request_id, first = group.request.request_id, group.sequences[0]
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
        """What begins to count in the `steps` steps before batch step `end`, as (step of the span, slots)."""
        starts = self._starts
        if not starts or starts[0][0] >= end:
            return ()
        events: list[tuple[int, int]] = []
        while starts and starts[0][0] < end:
            step, _, slots, tracked = heapq.heappop(starts)
            if tracked.alive:
                tracked.active += slots
                events.append((step - (end - steps), slots))
        return tuple(events)


def ramp(slope: int, prices: Affine, steps: int) -> tuple[int, int]:
    """Sum over the iterations, and integral over their time, of a count that grows from 0 by `slope` with each."""
    first_ps, growth_ps, _ = prices
    t1 = steps * (steps - 1) // 2
    t2 = (steps - 1) * steps * (2 * steps - 1) // 6
    return slope * t1, slope * (first_ps * t1 + growth_ps * t2)


def from_steps(events: Growth, late: int, prices: Affine, steps: int, duration_ps: int) -> tuple[int, int]:
    """The same of a count that grows by so many slots from each event's iteration on, `late` iterations after it."""
    slots = first = second = 0  # moments: slots, slots * step, slots * step * step
    for step, taken in events:
        weighted = taken * (step + late)
        slots += taken
        first += weighted
        second += weighted * (step + late)
    first_ps, growth_ps, _ = prices
    return slots * steps - first, slots * duration_ps - first * first_ps - growth_ps * ((second - first) // 2)


def taken_from_cache(growth: Growth, free: int) -> Growth:
    """The part of what an extend took that free slots did not suffice for."""
    taken = 0
    events: list[tuple[int, int]] = []
    for step, slots in growth:
        before, taken = max(taken - free, 0), taken + slots
        if taken > free:
            events.append((step, taken - free - before))
    return tuple(events)
