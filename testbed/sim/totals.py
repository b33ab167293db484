"""Exact sums over iterations and over time, from which every average comes."""

from dataclasses import dataclass, fields, replace
from typing import NamedTuple


class State(NamedTuple):
    """What an iteration saw: resident requests, and the pool's slots by kind (section 3.1).

    live: stored K and V. reserved: held and will be used by the same request. internal: held and never used.
    The rest of the pool is external fragmentation and others.
    """

    running: int
    live: int
    reserved: int
    internal: int


class SpanSums(NamedTuple):
    """A State summed over the iterations of a span, and integrated over its picoseconds."""

    per_iteration: State
    over_time: State


@dataclass(slots=True)
class Totals:
    """Sums since the start: counts, and each State field over iterations and over time.

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
    running: int = 0
    live: int = 0
    reserved: int = 0
    internal: int = 0
    running_time: int = 0
    live_time: int = 0
    reserved_time: int = 0
    internal_time: int = 0

    def copy(self) -> "Totals":
        """As they stand now."""
        return replace(self)

    def since(self, earlier: "Totals") -> "Totals":
        """What was added since `earlier`."""
        return Totals(*(getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)))

    def add(self, sums: SpanSums) -> None:
        """Add a span's sums."""
        per_iteration, over_time = sums
        self.running += per_iteration.running
        self.live += per_iteration.live
        self.reserved += per_iteration.reserved
        self.internal += per_iteration.internal
        self.running_time += over_time.running
        self.live_time += over_time.live
        self.reserved_time += over_time.reserved
        self.internal_time += over_time.internal
