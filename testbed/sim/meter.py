"""Splits the pool as section 3.1 does. A meter knows the true lengths; a policy need not."""

import heapq
from abc import ABC, abstractmethod
from itertools import count

from testbed.core.sequence import SequenceGroup
from testbed.core.slots import NO_GROWTH, Growth, Usage, Waste
from testbed.cost.model import Affine
from testbed.sched.plan import Outcome, Plan
from testbed.sched.scheduler import Scheduler


class Meter(ABC):
    """Sees every plan before it runs, and every outcome before the next plan."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler

    @abstractmethod
    def open(self, plan: Plan, used: Usage) -> None:
        """Look at the pool as the first iteration of this plan sees it; `used` is the policy's own account of it."""

    @abstractmethod
    def close(self, plan: Plan, prices: Affine, steps: int, outcome: Outcome) -> tuple[int, ...]:
        """The values of SpanSums over the `steps` iterations that were carried out."""


class PlainMeter(Meter):
    """Walks every table before every iteration: slow, obvious, right for any policy."""

    def open(self, plan: Plan, used: Usage) -> None:
        policy, internal = self.scheduler.policy, 0
        for group in self.scheduler.running.values():
            for seq in group.resident:
                slots = sum(extent.length for extent in policy.table(seq))
                internal += max(0, slots - group.request.final_len)
        reserved = used.held - used.live - internal
        self._seen = len(self.scheduler.running), used.live, reserved, internal, used.saved

    def close(self, plan: Plan, prices: Affine, steps: int, outcome: Outcome) -> tuple[int, ...]:
        if steps != 1:
            raise ValueError("the plain meter measures one iteration at a time")
        return *self._seen, *(value * prices.first_ps for value in self._seen)


class Tracked:
    """A resident group's never-used slots; they count from from_len tokens on, and `alive` until the group leaves."""

    __slots__ = ("active", "alive", "from_len", "slots")

    def __init__(self, waste: Waste, num_seqs: int, num_tokens: int) -> None:
        self.slots = waste.slots * num_seqs
        self.from_len = waste.from_len
        self.active = num_tokens >= waste.from_len
        self.alive = True


class SpanMeter(Meter):
    """Integrates whole spans in closed form. Equals the plain meter exactly, for policies that answer `waste`.

    The never-used slots of a decoding group start to count at a known step of the batch; `_starts` orders these steps.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self._tracked: dict[int, Tracked] = {}
        self._starts: list[tuple[int, int, Tracked]] = []
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
        self._running = len(self.scheduler.running)
        self._growing = len(self.scheduler.batch.sequences)

    def close(self, plan: Plan, prices: Affine, steps: int, outcome: Outcome) -> tuple[int, ...]:
        started = self._start(self.scheduler.batch.steps, steps) if plan.decode_seqs else NO_GROWTH
        if steps == 1:
            sums = self._single(prices.first_ps, self._internal + started.slots)
        else:
            sums = self._span(prices, steps, started, outcome.growth)
        self._internal += started.slots
        for group in outcome.finished:
            self._forget(group)
        for chunk in plan.chunks:
            if chunk.last and chunk.group.finish_step >= 0:
                self._joined(chunk.group)
        for group in plan.resumed:
            if group.finish_step >= 0:
                self._joined(group)
        return sums

    def _single(self, duration_ps: int, internal: int) -> tuple[int, ...]:
        running, live = self._running, self._used.live
        reserved = self._used.held - live - internal
        saved = self._used.saved
        times = running * duration_ps, live * duration_ps, reserved * duration_ps, internal * duration_ps
        return running, live, reserved, internal, saved, *times, saved * duration_ps

    def _span(self, prices: Affine, steps: int, started: Growth, growth: Growth) -> tuple[int, ...]:
        first_ps, growth_ps, _ = prices
        t1 = steps * (steps - 1) // 2
        t2 = (steps - 1) * steps * (2 * steps - 1) // 6
        duration, ramp = steps * first_ps + growth_ps * t1, first_ps * t1 + growth_ps * t2
        used, n = self._used, self._growing
        live = used.live * steps + n * t1
        live_time = used.live * duration + n * ramp

        # The policy counts from the second step of the span: an event of its step t happened at step t + 1.
        w0, w1, w2 = growth
        held = (used.held + w0) * steps - w1 - w0
        held_time = (used.held + w0) * duration - first_ps * (w1 + w0) - growth_ps * ((w2 + w1) // 2)
        w0, w1, w2 = started
        internal = (self._internal + w0) * steps - w1
        internal_time = (self._internal + w0) * duration - first_ps * w1 - growth_ps * ((w2 - w1) // 2)
        sums = self._running * steps, live, held - live - internal, internal, used.saved * steps
        reserved_time = held_time - live_time - internal_time
        times = self._running * duration, live_time, reserved_time, internal_time, used.saved * duration
        return *sums, *times

    def _track(self, group: SequenceGroup) -> Tracked:
        """Count what the group holds now and will never use."""
        if group.request.request_id in self._tracked:
            self._forget(group)
        waste = self.scheduler.policy.waste(group.sequences[0], group.request.final_len)
        if waste is None:
            raise ValueError(f"{type(self.scheduler.policy).__name__} does not answer waste(): use the plain meter")
        tracked = self._tracked[group.request.request_id] = Tracked(waste, len(group.resident), group.num_tokens)
        if tracked.active:
            self._internal += tracked.slots
        return tracked

    def _joined(self, group: SequenceGroup) -> None:
        """The group decodes from the next step on, with all its sequences."""
        tracked = self._tracked[group.request.request_id]
        if len(group.sequences) > 1:
            tracked = self._track(group)
        if not tracked.active:
            step = group.joined_at + tracked.from_len - group.num_tokens - 1
            heapq.heappush(self._starts, (step, next(self._serial), tracked))

    def _forget(self, group: SequenceGroup) -> None:
        tracked = self._tracked.pop(group.request.request_id, None)
        if tracked is not None:
            tracked.alive = False
            self._internal -= tracked.slots if tracked.active else 0

    def _start(self, end: int, steps: int) -> Growth:
        """Begin to count what starts in the `steps` steps before batch step `end`."""
        starts = self._starts
        if not starts or starts[0][0] >= end:
            return NO_GROWTH
        slots = first = second = 0
        while starts and starts[0][0] < end:
            step, _, tracked = heapq.heappop(starts)
            if tracked.alive:
                tracked.active = True
                late = step - (end - steps)
                slots += tracked.slots
                first += tracked.slots * late
                second += tracked.slots * late * late
        return Growth(slots, first, second)
