"""Exact sums over iterations and over time, from which every average comes; those of a span in
closed form.
"""

from collections import Counter
from dataclasses import dataclass, field, fields
from operator import mul, sub
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from testbed.core.slots import Usage
from testbed.engine.packed_rows import Counts

HALF = 31  # bits


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


# Changes in a span of iterations from SpanMemory.used on, as plain numbers: the slots that become
# live with each iteration, and the three sums of a Growth of the slots that begin to count as never
# used, of those that are taken, and of those that were cached until then, each by the number of the
# first iteration that sees it, from 0.
SpanGrowth: TypeAlias = tuple[int, ...]

CHANGING = [Measures._fields.index(name) for name in ("live", "reserved", "internal", "cached")]
NO_CHANGE: SpanGrowth = (0,) * 10


def changes_of(
    steps: Counts, durations_ps: Counts, growth_ps: Counts, grown: Counts
) -> tuple[Counts, list[int]]:
    """The changes of spans: summed over the iterations of each span, and over the picoseconds of
    all spans; both in the order of CHANGING.

    A count that grows by w in iteration t, from 0, adds w * (steps - t) over the iterations. grown:
    a row for each number of SpanGrowth. growth_ps: what each iteration takes more than the one
    before.
    """
    steps, durations_ps, growth_ps, grown = exact(steps, durations_ps, growth_ps, grown)
    pairs = steps * (steps - 1) // 2
    first_ps = (durations_ps - growth_ps * pairs) // steps
    slope, kinds = grown[0], (grown[1:4], grown[4:7], grown[7:10])
    live = slope * (pairs + steps)
    internal, taken, evicted = [w0 * steps - w1 for w0, w1, _ in kinds]
    later_ps = growth_ps * (pairs * (2 * steps - 1) // 3)
    live_ps = summed_products(slope, durations_ps + first_ps * pairs + later_ps)
    internal_ps, held_ps, evicted_ps = [
        summed_products(w0, durations_ps)
        - summed_products(w1, first_ps)
        - summed_products((w2 - w1) // 2, growth_ps)
        for w0, w1, w2 in kinds
    ]
    counts = np.array([live, taken - live - internal, internal, -evicted])
    return counts, [live_ps, held_ps - live_ps - internal_ps, internal_ps, -evicted_ps]


def exact(
    steps: Counts, durations_ps: Counts, growth_ps: Counts, grown: Counts
) -> tuple[Counts, ...]:
    """The columns of `changes_of`; as Python's numbers if products may need more than 64 bits."""
    most, longest_ps, largest = (int(abs(column).max()) for column in (steps, durations_ps, grown))
    if 2 * (most + 1) * max(longest_ps, largest * (most + 1)) < 1 << 63:
        return steps, durations_ps, growth_ps, grown
    columns: tuple[Any, ...] = steps, durations_ps, growth_ps, grown
    return tuple(column.astype(object) for column in columns)


def summed_products(values: Counts, durations_ps: Counts) -> int:
    """The sum of the products, exactly: in 64 bits if these surely hold it, whole or in halves of
    the durations.
    """
    largest = max(int(values.max()), -int(values.min())) * len(values)
    if largest * int(durations_ps.max()) < 1 << 63:
        return int(values @ durations_ps)
    if largest < 1 << HALF:
        high_ps, low_ps = durations_ps >> HALF, durations_ps & ((1 << HALF) - 1)
        return (int(values @ high_ps) << HALF) + int(values @ low_ps)
    return sum(map(mul, values.tolist(), durations_ps.tolist()))


class SharedSlots(NamedTuple):
    """Iterations in a row that held `held` slots each: the slots that they saved, summed over them,
    and integrated over their picoseconds.
    """

    held: int
    saved: int
    saved_ps: int


class SpanMemory(NamedTuple):
    """The memory that the iterations of a span see.

    running, used, internal, copies: of the first iteration, its running requests, the pool, slots
    that will never be used, and slots of prompts that are computed once for several sequences.
    growth: what changes from there on, the tokens of the first iteration included; nothing if there
    is one iteration. shared: all iterations, if sharing saves slots in them.
    """

    running: int
    used: Usage
    internal: int
    copies: int
    growth: SpanGrowth = NO_CHANGE
    shared: tuple[SharedSlots, ...] = ()

    def lasting(self, duration_ps: int) -> "SpanMemory":
        """These totals with the duration of their one iteration, which was not known when it was
        measured.
        """
        shared = [SharedSlots(held, saved, saved * duration_ps) for held, saved, _ in self.shared]
        return self._replace(shared=tuple(shared))


# The same in a plain tuple
SpanAccount: TypeAlias = tuple[int, Usage, int, int, SpanGrowth, tuple[SharedSlots, ...]]


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
