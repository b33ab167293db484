"""Names for the parts of the raster that are large enough to carry one."""

from collections.abc import Iterator
from typing import NamedTuple

from testbed.core.slots import ceil_div
from testbed.sim.memory_trace import Frame, MemoryTrace


class Place(NamedTuple):
    """An extent as a request holds it; `logical` is its first logical block, -1 where it is the whole table."""

    request_id: int
    logical: int
    start: int
    length: int

    def __str__(self) -> str:
        return str(self.request_id) if self.logical < 0 else f"{self.request_id}\N{MIDDLE DOT}{self.logical}"


class Label(NamedTuple):
    """A place during the time in which it does not change."""

    place: Place
    start_ps: int
    end_ps: int


def labels(trace: MemoryTrace, min_slots: float, min_ps: float) -> Iterator[Label]:
    """Every place that is large and lasts long enough, in order of its end."""
    since: dict[Place, int] = {}
    for frame in trace.frames:
        now = dict.fromkeys(places(frame, trace.block_size, min_slots))
        for place in [place for place in since if place not in now]:
            yield from lasting(place, since.pop(place), frame.start_ps, min_ps)
        for place in now:
            since.setdefault(place, frame.start_ps)
    for place, start_ps in since.items():
        yield from lasting(place, start_ps, trace.end_ps, min_ps)


def places(frame: Frame, block_size: int, min_slots: float) -> Iterator[Place]:
    """The large extents of a frame; a block that several sequences of a request hold comes more than once."""
    for held in frame.held.values():
        position = 0
        for start, length in held.device:
            if length >= min_slots:
                logical = -1 if len(held.device) == 1 and length > block_size else ceil_div(position, block_size)
                yield Place(held.request_id, logical, start, length)
            position += length


def lasting(place: Place, start_ps: int, end_ps: int, min_ps: float) -> Iterator[Label]:
    """The label, if the time is long enough."""
    if end_ps - start_ps >= min_ps:
        yield Label(place, start_ps, end_ps)
