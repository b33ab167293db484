"""Exact sums over iterations and over time, from which every average comes; those of a span in
closed form.
"""

from collections import Counter
from dataclasses import dataclass, field, fields
from operator import sub
from typing import NamedTuple

from testbed.core.slots import Growth, Usage
from testbed.cost.model import Affine


class Measures(NamedTuple):
    """The memory that an iteration sees; a new measure is one line here and one in the meter.

    running: admitted requests. The rest is in slots. live ones store K and V (token states),
    reserved ones are held and will be used by the same request, internal ones are held and never
    used (section 3.1); what is left of the pool is external fragmentation and others. saved: slots
    that would be held on top without sharing, also while a prompt is computed once for several
    sequences. cached: unreferenced but findable. rounding: not held, yet unusable, by an
    allocator's rounding. external_fragmentation: free or cached, but outside the largest free
    extent.
    """

    running: int = 0
    live: int = 0
    reserved: int = 0
    internal: int = 0
    saved: int = 0
    cached: int = 0
    rounding: int = 0
    external_fragmentation: int = 0

    def __sub__(self, other: "Measures") -> "Measures":
        return Measures(*map(sub, self, other))


class Span:
    """Iterations in a row, whose durations are affine: the first takes first_ps, each later one
    growth_ps more.
    """

    __slots__ = ("duration_ps", "first_ps", "growth_ps", "steps")

    def __init__(self, steps: int, duration_ps: int, durations: Affine) -> None:
        self.steps, self.duration_ps = steps, duration_ps
        self.first_ps, self.growth_ps, _ = durations

    def ramp(self, slope: int) -> tuple[int, int]:
        """Summed over the iterations, and integrated over their time: a count that grows by `slope`
        with each.
        """
        steps = self.steps
        pairs = steps * (steps - 1) // 2
        return slope * pairs, slope * (
            self.first_ps * pairs + self.growth_ps * (pairs * (2 * steps - 1) // 3)
        )

    def at(self, growth: Growth) -> tuple[int, int]:
        """Sum and time integral of a count that steps up in the iteration of each event."""
        w0, w1, w2 = growth
        return w0 * self.steps - w1, w0 * self.duration_ps - w1 * self.first_ps - self.growth_ps * (
            (w2 - w1) // 2
        )

    def after(self, growth: Growth) -> tuple[int, int]:
        """Sum and time integral of a count that steps up after the iteration of each event."""
        w0, w1, w2 = growth
        time = w0 * self.duration_ps - (w0 + w1) * self.first_ps - self.growth_ps * ((w2 + w1) // 2)
        return w0 * self.steps - w0 - w1, time


class Changes(NamedTuple):
    """Changes in a span after its first iteration: summed over the iterations, and integrated over
    picoseconds.
    """

    live: int = 0
    reserved: int = 0
    internal: int = 0
    cached: int = 0
    live_time: int = 0
    reserved_time: int = 0
    internal_time: int = 0
    cached_time: int = 0


NO_CHANGE = Changes()
CHANGING = [Measures._fields.index(name) for name in Changes._fields[:4]]


class SharedSlots(NamedTuple):
    """An iteration that held `held` slots and saved `saved`; saved_ps: the same times its
    picoseconds.
    """

    held: int
    saved: int
    saved_ps: int


class SpanMemory(NamedTuple):
    """The memory that the iterations of a span see.

    running, used, internal, copies: of the first iteration, its running requests, the pool, slots
    that will never be used, and slots of prompts that are computed once for several sequences.
    changes: after the first iteration. shared: each iteration in which sharing saves slots.
    """

    running: int
    used: Usage
    internal: int
    copies: int
    changes: Changes = NO_CHANGE
    shared: tuple[SharedSlots, ...] = ()

    def lasting(self, duration_ps: int) -> "SpanMemory":
        """The same of one iteration, whose duration was not known when it was measured."""
        shared = [SharedSlots(held, saved, saved * duration_ps) for held, saved, _ in self.shared]
        return self._replace(shared=tuple(shared))


@dataclass(slots=True)
class Totals:
    """Sums since the start over iterations and time, in whole numbers, so that steps and spans give
    the same.

    shared and shared_ps: by slots held, the slots saved, summed over iterations, and integrated
    over picoseconds; their ratio is taken once, at the end.
    """

    iterations: int = 0
    busy_ps: int = 0
    arrived: int = 0
    finished: int = 0
    rejected: int = 0
    cancelled: int = 0
    generated: int = 0
    swaps: int = 0
    recomputes: int = 0
    recomputed: int = 0
    copies: int = 0
    per_iteration: Measures = field(default_factory=Measures)
    over_time: Measures = field(default_factory=Measures)
    shared: Counter[int] = field(default_factory=Counter)
    shared_ps: Counter[int] = field(default_factory=Counter)

    def since(self, earlier: "Totals") -> "Totals":
        return Totals(
            *[getattr(self, count.name) - getattr(earlier, count.name) for count in fields(self)]
        )
