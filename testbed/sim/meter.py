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
from testbed.sim.totals import Change, Seen

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

    def unused(self, group: SequenceGroup) -> int:
        """Slots in a group's tables that will never be used; those of a block that several still share count once."""
        final_len = self.outputs.requests[group.request.request_id].final_len
        pieces = set[tuple[int, int]]()
        for seq in group.resident:
            left = final_len - (seq.room - self.policy.stored(seq.room))  # what was dropped is in no table
            for start, length in self.policy.table(seq):
                if length > left:
                    pieces.add((start + left, length - left))
                left = max(left - length, 0)
        return sum(length for _, length in pieces)


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
        running = self.residents.running
        self._seen = seen(len(running), used, sum(self.unused(group) for group in running.values()))

    def close(self, plan: Plan, prices: Affine, steps: int, duration_ps: int, outcome: Outcome) -> Seen:
        if steps != 1:
            raise ValueError("the plain meter measures one iteration at a time")
        return Seen(self._seen)


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
            elif from_len < final_len:  # the last token is never stored
                self.later.append((from_len, slots * num_seqs))


class SpanMeter(Meter):
    """Integrates whole spans in closed form. Equals the plain meter exactly, for policies that say their footprints.

    The never-used slots of a decoding group start to count at known steps of the batch; `_starts` orders these steps.
    `_forked` holds groups whose sequences may share their last block, as they do from a fork to their next step.
    """

    def __init__(self, scheduler: Scheduler, outputs: Outputs) -> None:
        super().__init__(scheduler, outputs)
        self._tracked: dict[int, Tracked] = {}
        self._starts: list[tuple[int, int, int, Tracked]] = []
        self._forked: dict[int, SequenceGroup] = {}
        self._serial = count()
        self._internal = self._repeated = 0

    def open(self, plan: Plan, used: Usage) -> None:
        for group in plan.preempted:
            self._forget(group)
        for chunk in plan.chunks:
            self._track(chunk.group)
        for group in plan.resumed:
            self._track(group)
        forked = [*plan.resumed] if plan.decode_seqs else [*self._forked.values(), *plan.resumed]
        self._repeated = sum([self._counted_again(group) for group in forked]) if forked else 0
        self._used = used
        self._running = len(self.residents.running)
        self._growing = len(self.residents.batch.sequences)

    def close(self, plan: Plan, prices: Affine, steps: int, duration_ps: int, outcome: Outcome) -> Seen:
        started = self._start(self.residents.batch.steps, steps) if plan.decode_seqs else NO_GROWTH
        if steps == 1:
            now = Seen(seen(self._running, self._used, self._internal - self._repeated + started.slots))
        else:
            span = steps, duration_ps, prices.first_ps, prices.growth_ps
            now = Seen(seen(self._running, self._used, self._internal), *self._changes(span, started, outcome.grown))
        self._internal += started.slots
        if plan.decode_seqs:
            self._forked = dict(self.residents.beams)
        for group in outcome.finished:
            self._forget(group)
        if plan.chunks or plan.resumed:
            for group in (*outcome.first_tokens, *plan.resumed):
                if group.status is SequenceStatus.RUNNING:
                    self._joined(group)
        return now

    def _changes(self, span: Span, started: Growth, grown: Grant) -> tuple[Change, Change]:
        """What the second and later iterations see that the first did not."""
        live, live_time = ramp(self._growing, span)
        held, held_time = after(grown.growth, span) if grown.growth.slots else (0, 0)
        internal, internal_time = at(started, span) if started.slots else (0, 0)
        evicted, evicted_time = after(grown.evicted, span) if grown.evicted.slots else (0, 0)
        return (
            (live, held - live - internal, internal, -evicted),
            (live_time, held_time - live_time - internal_time, internal_time, -evicted_time),
        )

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
            self._forked[group.request.request_id] = group
        joined_at, num_tokens = self.residents.batch.steps, group.sequences[0].room
        for from_len, slots in tracked.later:
            heapq.heappush(self._starts, (joined_at + from_len - num_tokens - 1, next(self._serial), slots, tracked))

    def _counted_again(self, group: SequenceGroup) -> int:
        """Never-used slots that are counted for each of the sequences that share them, but for the first."""
        tracked = self._tracked.get(group.request.request_id)
        return tracked.active - self.unused(group) if tracked is not None and tracked.active else 0

    def _forget(self, group: SequenceGroup) -> None:
        tracked = self._tracked.pop(group.request.request_id, None)
        if tracked is not None:
            self._forked.pop(group.request.request_id, None)
            tracked.alive = False
            self._internal -= tracked.active

    def _start(self, end: int, steps: int) -> Growth:
        """What begins to count in the `steps` steps before batch step `end`, by step of the span."""
        starts = self._starts
        if not starts or starts[0][0] >= end:
            return NO_GROWTH
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
