"""Section 3.1's split of the pool, written once: for counts, for arrays of them, and for sums.

Slots of the pool are live (they store a token), reserved (held, and used by the same request
later), internal (held, and never used: internal fragmentation), or the rest: external fragmentation
and others. The rest consists of slots that an allocator's rounding makes unusable, and of free
slots, of which one sequence could get the largest extent.
"""

from typing import Any, NamedTuple, TypeAlias

from testbed.engine.totals import Measures

Slots: TypeAlias = Any  # int or NDArray[np.int64], the same for all arguments of a call


def reserved_slots(held: Slots, live: Slots, internal: Slots) -> Slots:
    """Held slots that are not live yet, and will be used by the same request."""
    return held - live - internal


def rounding_slots(allocated: Slots, held: Slots) -> Slots:
    """Slots that are not held, and that the allocator's rounding makes unusable."""
    return allocated - held


def fragmented_slots(free: Slots, cached: Slots, largest_free: Slots) -> Slots:
    """Free and cached slots outside the largest extent that one sequence could get."""
    return free + cached - largest_free


class PoolParts(NamedTuple):
    """All slots of a pool by kind, summed over iterations or over time."""

    token_states: int
    reserved: int
    internal: int
    external: int
    cached: int
    largest_free: int
    free: int


def pool_parts(sums: Measures, total: int) -> PoolParts:
    """The parts of `total` slots, both of them summed over the same iterations or time."""
    external = total - sums.live - sums.reserved - sums.internal
    free = external - sums.rounding
    return PoolParts(
        token_states=sums.live,
        reserved=sums.reserved,
        internal=sums.internal,
        external=external,
        cached=sums.cached,
        largest_free=free - sums.external_fragmentation,
        free=free,
    )
