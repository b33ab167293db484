"""Exact sums over iterations and over time, from which every average comes."""

from dataclasses import dataclass, fields, replace
from typing import NamedTuple


class SpanSums(NamedTuple):
    """What the iterations of a span saw, summed over them and, as `_time`, integrated over picoseconds.

    running: resident requests. The rest splits the pool as section 3.1 does, in slots: live ones store K and V,
    reserved ones are held and will be used by the same request, internal ones are held and never used. What is left
    of the pool is external fragmentation and others. saved: slots that would be held on top without sharing.
    """

    running: int
    live: int
    reserved: int
    internal: int
    saved: int
    running_time: int
    live_time: int
    reserved_time: int
    internal_time: int
    saved_time: int


@dataclass(slots=True)
class Totals:
    """Sums since the start: counts, and SpanSums over all spans.

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
    saved: int = 0
    running_time: int = 0
    live_time: int = 0
    reserved_time: int = 0
    internal_time: int = 0
    saved_time: int = 0

    def copy(self) -> "Totals":
        """As they stand now."""
        return replace(self)

    def since(self, earlier: "Totals") -> "Totals":
        """What was added since `earlier`."""
        return Totals(*(getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)))

    def add(self, sums: SpanSums) -> None:
        """Add a span's sums."""
        running, live, reserved, internal, saved, running_time, live_time, reserved_time, internal_time, saved_time = (
            sums
        )
        self.running += running
        self.live += live
        self.reserved += reserved
        self.internal += internal
        self.saved += saved
        self.running_time += running_time
        self.live_time += live_time
        self.reserved_time += reserved_time
        self.internal_time += internal_time
        self.saved_time += saved_time
