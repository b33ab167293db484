"""Exact sums over iterations and over time, from which every average comes."""

from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple, TypeAlias

from testbed.core.slots import Usage
from testbed.sim.sharing import Shared, Sharing, without


class Measures(NamedTuple):
    """What an iteration sees; a new measure is one line here and one in the meter.

    running: resident requests. The rest is in slots. live ones store K and V (token states), reserved ones are held
    and will be used by the same request, internal ones are held and never used (section 3.1); what is left of the pool
    is external fragmentation and others. saved: slots that would be held on top without sharing, also while a
    prompt is computed once for several sequences. cached: unreferenced
    but findable. rounding: not held, yet unusable, by an allocator's rounding. scattered: free or cached, but outside
    the largest run that one sequence could get.
    """

    running: int = 0
    live: int = 0
    reserved: int = 0
    internal: int = 0
    saved: int = 0
    cached: int = 0
    rounding: int = 0
    scattered: int = 0


CHANGING = [Measures._fields.index(name) for name in ("live", "reserved", "internal", "cached")]

# What changes in a span after its first iteration, twice in the order of CHANGING: summed over the iterations, and
# integrated over picoseconds.
Changes: TypeAlias = tuple[int, ...]
NO_CHANGE: Changes = (0,) * (2 * len(CHANGING))

# What the iterations of a span see: the first one's resident requests, its Usage, slots of it that will never be used,
# slots of prompts that are computed once for several sequences; its Changes; each iteration that saved any slots.
Seen: TypeAlias = tuple[int, Usage, int, int, Changes, tuple[Shared, ...]]


def plus(a: Measures, b: Measures) -> Measures:
    """The sum of two, measure by measure."""
    return Measures(*[x + y for x, y in zip(a, b, strict=True)])


def minus(a: Measures, b: Measures) -> Measures:
    """The difference of two, measure by measure."""
    return Measures(*[x - y for x, y in zip(a, b, strict=True)])


@dataclass(slots=True)
class Totals:
    """Sums since the start: counts, and measures over all iterations and over all time; `sharing` is never changed.

    All are whole numbers of any size, so that adding step by step and adding spans give the same.
    """

    iterations: int = 0
    busy_ps: int = 0
    arrived: int = 0
    finished: int = 0
    rejected: int = 0
    generated: int = 0
    swaps: int = 0
    recomputes: int = 0
    copies: int = 0
    per_iteration: Measures = field(default_factory=Measures)
    over_time: Measures = field(default_factory=Measures)
    sharing: Sharing = field(default_factory=dict)

    def copy(self) -> "Totals":
        """As they stand now."""
        return replace(self)

    def since(self, earlier: "Totals") -> "Totals":
        """What was added since `earlier`."""
        later = {f.name: getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)[:-3]}
        per_iteration = minus(self.per_iteration, earlier.per_iteration)
        over_time = minus(self.over_time, earlier.over_time)
        sharing = without(self.sharing, earlier.sharing)
        return Totals(**later, per_iteration=per_iteration, over_time=over_time, sharing=sharing)
