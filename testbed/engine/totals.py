"""Exact sums over iterations and over time, from which every average comes; those of a span in
closed form.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from operator import sub
from typing import NamedTuple, TypeAlias

from testbed.core.slots import NO_GROWTH, Growth, Usage


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


# Changes in a span of iterations from SpanMemory.used on, in a plain tuple, which costs a fifth of
# a named one: the first iteration's duration and what each later one takes more (ps), the slots
# that become live with each iteration, and those that begin to count as never used, that are taken,
# and that were cached until then, each by the number of the first iteration that sees it, from 0.
SpanGrowth: TypeAlias = tuple[int, int, int, Growth, Growth, Growth]

CHANGING = [Measures._fields.index(name) for name in ("live", "reserved", "internal", "cached")]
NO_CHANGE = (0, 0, 0, 0)


def changes_of(
    steps: Iterable[int], durations_ps: Iterable[int], grown: Iterable[SpanGrowth | None]
) -> tuple[list[tuple[int, ...]], list[int]]:
    """The changes of spans: summed over the iterations of each span, and over the picoseconds of
    all spans; both in the order of CHANGING.

    A count that grows by w in iteration t, from 0, adds w * (steps - t) over the iterations. The
    sums may be more than 64 bits hold.
    """
    rows: list[tuple[int, ...]] = []
    live_ps = internal_ps = held_ps = cached_ps = 0
    for num, whole_ps, growth in zip(steps, durations_ps, grown, strict=True):
        if growth is None:
            rows.append(NO_CHANGE)
            continue
        first_ps, growth_ps, slope, started, held, evicted = growth
        pairs = num * (num - 1) // 2
        live, taken, internal, cached = slope * (pairs + num), 0, 0, 0
        live_ps += slope * (whole_ps + first_ps * pairs + growth_ps * (pairs * (2 * num - 1) // 3))
        if held is not NO_GROWTH:
            w0, w1, w2 = held
            taken = w0 * num - w1
            held_ps += w0 * whole_ps - w1 * first_ps - growth_ps * ((w2 - w1) // 2)
        if started is not NO_GROWTH:
            w0, w1, w2 = started
            internal = w0 * num - w1
            internal_ps += w0 * whole_ps - w1 * first_ps - growth_ps * ((w2 - w1) // 2)
        if evicted is not NO_GROWTH:
            w0, w1, w2 = evicted
            cached = w1 - w0 * num
            cached_ps -= w0 * whole_ps - w1 * first_ps - growth_ps * ((w2 - w1) // 2)
        rows.append((live, taken - live - internal, internal, cached))
    return rows, [live_ps, held_ps - live_ps - internal_ps, internal_ps, cached_ps]


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
    growth: what changes from there on, the tokens of the first iteration included, if there may
    be several. shared: all iterations, if sharing saves slots in them.
    """

    running: int
    used: Usage
    internal: int
    copies: int
    growth: SpanGrowth | None = None
    shared: tuple[SharedSlots, ...] = ()

    def lasting(self, duration_ps: int) -> "SpanMemory":
        """These totals with the duration of their one iteration, which was not known when it was
        measured.
        """
        shared = [SharedSlots(held, saved, saved * duration_ps) for held, saved, _ in self.shared]
        return self._replace(shared=tuple(shared))


# The same in a plain tuple
SpanAccount: TypeAlias = tuple[int, Usage, int, int, SpanGrowth | None, tuple[SharedSlots, ...]]


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
