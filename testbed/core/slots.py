"""The values that cross the border of a memory policy: extents, copies, answers, usage."""

from enum import Enum
from typing import NamedTuple, TypeAlias


def ceil_div(a: int, b: int) -> int:
    """Smallest whole number that is at least a / b, for b > 0."""
    return -(-a // b)


class Tier(Enum):
    """Where a pool lies."""

    DEVICE = "device"
    HOST = "host"


class Extent(NamedTuple):
    """A run of `length` adjacent slots from slot `start` on."""

    start: int
    length: int


class Copy(NamedTuple):
    """Copy the block (or extent) that starts at slot src to slot dst, `length` slots."""

    src: int
    dst: int
    length: int


class Ops(NamedTuple):
    """What must physically happen before the next iteration: an engine performs it, the simulator prices it."""

    copies: tuple[Copy, ...] = ()
    swap_out: tuple[Copy, ...] = ()
    swap_in: tuple[Copy, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.copies or self.swap_out or self.swap_in)


NO_OPS = Ops()


class Growth(NamedTuple):
    """How the held slots grew during an extend of several steps, as moments over the growth events.

    An event at step t (0 for the first step) that adds w slots counts w, w*t and w*t*t. These three sums are all that
    is needed to integrate the held slots over steps whose durations are affine in t.
    """

    slots: int = 0
    first: int = 0
    second: int = 0


NO_GROWTH = Growth()


class Grant(NamedTuple):
    """Yes. num_cached leading tokens are already stored, ops must happen first, growth says when slots were taken."""

    num_cached: int = 0
    ops: Ops = NO_OPS
    growth: Growth = NO_GROWTH


GRANTED = Grant()


class Refusal(Enum):
    """No. LATER may pass once something is released, moved out or published; NEVER would not fit an empty pool."""

    LATER = "later"
    NEVER = "never"


Answer: TypeAlias = Grant | Refusal
Answers: TypeAlias = list[Grant] | Refusal


class Usage(NamedTuple):
    """A pool in slots. allocated + cached + free = total; live <= held <= allocated.

    live: slots that store a token. held: slots that a table points at, shared ones once. allocated: held slots and
    those that an allocator's rounding makes unusable. cached: unreferenced but findable. largest_free: longest run.
    saved: slots that tables would need on top of `held` if nothing were shared.
    """

    total: int
    live: int
    held: int
    allocated: int
    cached: int
    free: int
    largest_free: int
    saved: int = 0


class Waste(NamedTuple):
    """Once a sequence stores from_len tokens, `slots` of what it holds will never be used (section 3.1)."""

    from_len: int
    slots: int


class Unowned(NamedTuple):
    """What keeps slots from being free besides the tables of sequences.

    pinned: registered prefixes, whose slots tables may share. cached: unreferenced but findable. rounding: what an
    allocator's rounding makes unusable.
    """

    pinned: tuple[Extent, ...] = ()
    cached: tuple[Extent, ...] = ()
    rounding: tuple[Extent, ...] = ()
