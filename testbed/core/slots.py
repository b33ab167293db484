"""The values that cross the border of a memory policy: extents, copies, answers, usage, footprints."""

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple, TypeAlias

DEVICE, HOST = "device", "host"  # names of the two tiers that are built


def ceil_div(a: int, b: int) -> int:
    """Smallest whole number that is at least a / b, for b > 0."""
    return -(-a // b)


class Extent(NamedTuple):
    """A run of `length` adjacent slots from slot `start` on."""

    start: int
    length: int


class Copy(NamedTuple):
    """Copy `length` slots from slot src on to slot dst on."""

    src: int
    dst: int
    length: int


class Move(NamedTuple):
    """Copies from one tier to another, both by name; each Copy is one transfer."""

    source: str
    target: str
    copies: tuple[Copy, ...]


class Ops(NamedTuple):
    """What must physically happen before the next iteration: an engine performs it, the simulator prices it.

    copies stay on the device, moves cross tiers. extra counts whatever else happens, by name (pages mapped, blocks
    decompressed): a cost model prices it, or refuses the name.
    """

    copies: tuple[Copy, ...] = ()
    moves: tuple[Move, ...] = ()
    extra: tuple[tuple[str, int], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.copies or self.moves or self.extra)


NO_OPS = Ops()


class Growth(NamedTuple):
    """When an `extend` took slots, one of a single step too, as moments over these events.

    An event at step t (0 for the first) that takes w slots counts w, w * t and w * t * t: enough to integrate what is
    held over steps whose durations are affine in t, at a price that does not depend on the number of events.
    `growth_of` makes it of the plain list.
    """

    slots: int = 0
    first: int = 0
    second: int = 0


NO_GROWTH = Growth()


def growth_of(events: Iterable[tuple[int, int]]) -> Growth:
    """The moments of events (step, slots)."""
    slots = first = second = 0
    for step, taken in events:
        slots += taken
        first += taken * step
        second += taken * step * step
    return Growth(slots, first, second)


class Grant(NamedTuple):
    """Yes. num_cached leading tokens are already stored, and ops must happen first.

    growth says when an `extend` took slots, evicted which of them were cached before.
    """

    num_cached: int = 0
    ops: Ops = NO_OPS
    growth: Growth = NO_GROWTH
    evicted: Growth = NO_GROWTH


GRANTED = Grant()


class Refusal(Enum):
    """No. LATER may pass once something is released, moved out or published; NEVER would not fit an empty pool."""

    LATER = "later"
    NEVER = "never"


Answer: TypeAlias = Grant | Refusal
Answers: TypeAlias = list[Grant] | Refusal


class Usage(NamedTuple):
    """A pool in slots. allocated + cached + free = total; live <= held <= allocated.

    live: slots that store a token, or are about to. held: slots that a table points at, shared ones once. allocated:
    held slots and those that an allocator's rounding makes unusable. cached: unreferenced but findable. largest_free:
    the longest run among free and cached ones that one sequence could get. saved: slots that tables would need on top
    of `held` if nothing were shared.
    """

    total: int
    live: int
    held: int
    allocated: int
    cached: int
    free: int
    largest_free: int
    saved: int = 0


class Fixed(NamedTuple):
    """A footprint: `slots` slots, however many tokens are stored."""

    slots: int

    def waste(self, final_len: int) -> list[tuple[int, int]]:
        """See Footprint."""
        return [(0, self.slots - final_len)] if self.slots > final_len else []


class Granular(NamedTuple):
    """A footprint: as many whole blocks of `size` slots as the stored tokens need."""

    size: int

    def waste(self, final_len: int) -> list[tuple[int, int]]:
        """See Footprint."""
        padding = -final_len % self.size
        return [(final_len + padding - self.size + 1, padding)] if padding else []


class Stepped(NamedTuple):
    """A footprint: (tokens, slots) in rising order; up to so many tokens it is so many slots (a room that doubles)."""

    steps: tuple[tuple[int, int], ...]

    def waste(self, final_len: int) -> list[tuple[int, int]]:
        """See Footprint."""
        events, from_len, wasted = list[tuple[int, int]](), 0, 0
        for tokens, slots in self.steps:
            if slots - final_len > wasted:
                events.append((from_len, slots - final_len - wasted))
                wasted = slots - final_len
            from_len = tokens + 1
        return events


# What a sequence holds as a function of the tokens that it stores, as plain data up to max_len. waste(final_len) lists
# (from_len, slots): once it stores from_len tokens, so many more slots of what it holds will never be used by a
# sequence that ends at final_len tokens (section 3.1).
Footprint: TypeAlias = Fixed | Granular | Stepped


class Unowned(NamedTuple):
    """What keeps slots from being free besides the tables of sequences.

    pinned: registered prefixes, whose slots tables may share. cached: unreferenced but findable. rounding: what an
    allocator's rounding makes unusable.
    """

    pinned: tuple[Extent, ...] = ()
    cached: tuple[Extent, ...] = ()
    rounding: tuple[Extent, ...] = ()


def copies_between(source: Iterable[Extent], target: Iterable[Extent], num_slots: int) -> tuple[Copy, ...]:
    """The copies that bring the first num_slots slots of one table to another, whatever extents both have."""
    copies = list[Copy]()
    sources, targets = iter(source), iter(target)
    (src, left), (dst, room) = Extent(0, 0), Extent(0, 0)
    while num_slots > 0:
        if not left:
            src, left = next(sources)
        if not room:
            dst, room = next(targets)
        length = min(left, room, num_slots)
        if length:
            copies.append(Copy(src, dst, length))
        src, left, dst, room = src + length, left - length, dst + length, room - length
        num_slots -= length
    return tuple(copies)
