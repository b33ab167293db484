"""The values that cross the border of a memory policy: extents, copies, answers, usage,
footprints.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from operator import mul
from typing import ClassVar, NamedTuple, TypeAlias

DEVICE, HOST = "device", "host"  # names of the two tiers that exist

# Builds a named tuple in a third of the time, for the few types that every span of a run needs:
# record(Usage, (total, live, ...)) equals Usage(total, live, ...), with a value for every field.
record = tuple.__new__


def ceil_div(a: int, b: int) -> int:
    """Smallest whole number that is at least a / b, for b > 0."""
    return -(-a // b)


def round_down(number: int, size: int) -> int:
    """Largest multiple of `size` that is at most `number`."""
    return number // size * size


class Extent(NamedTuple):
    """Adjacent slots.

    Attributes:
        start: the first slot, from 0.
        length: how many slots.
    """

    start: int
    length: int


class GroupTable(NamedTuple):
    """The slots of a sequence's tokens in one KV group.

    Attributes:
        group: the group's number.
        extents: the runs of slots, in order.
        first: the first token that is there; earlier ones were given back.
        slots_per_token: 0 for a state, which fills its extents whatever the number of tokens.
    """

    group: int
    extents: list[Extent]
    first: int
    slots_per_token: int


class Copy(NamedTuple):
    """A copy from adjacent slots to adjacent slots.

    Attributes:
        src: the first slot that is read.
        dst: the first slot that is written.
        length: how many slots.
    """

    src: int
    dst: int
    length: int


class Move(NamedTuple):
    """Copies from one tier to another; each Copy is one transfer.

    Attributes:
        source: the tier's name that is read.
        target: the tier's name that is written.
        copies: slots of the source to slots of the target.
    """

    source: str
    target: str
    copies: tuple[Copy, ...]


class Transfer(NamedTuple):
    """A move in the background: iterations do not wait for it, and the engine calls
    `landed(move_id)` at its end.

    Attributes:
        move_id: a number of the policy's, different for each transfer that is on its way.
        move: what is moved.
    """

    move_id: int
    move: Move


class Ops(NamedTuple):
    """Operations before the next iteration: an engine performs them, the simulator computes their
    time.

    Attributes:
        copies: within the device.
        moves: between tiers; the iteration waits for them.
        extra: other operations as (name, how many), such as pages mapped: a cost model computes
            their time or refuses the name.
        background: transfers that begin when copies and moves are done; no iteration waits for
            them.
    """

    copies: tuple[Copy, ...] = ()
    moves: tuple[Move, ...] = ()
    extra: tuple[tuple[str, int], ...] = ()
    background: tuple[Transfer, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.copies or self.moves or self.extra or self.background)


NO_OPS = Ops()


class Growth(NamedTuple):
    """The steps at which an `extend` took slots, as sums over the steps (DESIGN.md;
    `growth_of` computes them).

    A step t (from 0) that takes w slots adds w, w * t and w * t * t.

    Attributes:
        slots: the sum of w.
        slot_steps: the sum of w * t.
        slot_steps_squared: the sum of w * t * t.
    """

    slots: int = 0
    slot_steps: int = 0
    slot_steps_squared: int = 0

    def one_step_later(self) -> "Growth":
        """These slots, each taken one step later."""
        if self is NO_GROWTH:
            return self
        slots, slot_steps, squared = self
        return Growth(slots, slot_steps + slots, squared + 2 * slot_steps + slots)


NO_GROWTH = Growth()


def growth_of(events: Iterable[tuple[int, int]]) -> Growth:
    """The sums over a list of (step, slots).

    Args:
        events: (step from 0, slots that it takes).
    """
    slots = slot_steps = slot_steps_squared = 0
    for step, taken in events:
        slots += taken
        slot_steps += taken * step
        slot_steps_squared += taken * step * step
    return record(Growth, (slots, slot_steps, slot_steps_squared))


def growth_at(steps: list[int], slots: int) -> Growth:
    """`growth_of` steps that take equal numbers of slots.

    Args:
        steps: from 0.
        slots: that each of them takes.
    """
    squared = sum(map(mul, steps, steps))
    return record(Growth, (slots * len(steps), slots * sum(steps), slots * squared))


class Grant(NamedTuple):
    """A positive answer.

    Attributes:
        num_cached: leading tokens that are stored already.
        ops: what must run first.
        growth: the slots that an `extend` took, by step.
        evicted: those of them that were cached before.
        ends_refusals: the call gave slots back, or made content findable, so that a request that
            was refused before may be granted now.
    """

    num_cached: int = 0
    ops: Ops = NO_OPS
    growth: Growth = NO_GROWTH
    evicted: Growth = NO_GROWTH
    ends_refusals: bool = False


GRANTED = Grant()


@dataclass(frozen=True, slots=True, repr=False)
class Refusal:
    """A negative answer, which changed nothing.

    LATER may succeed once slots are released, moved out or published. LOADING: what the sequence
    would find is on its way to the device; the refusal ends when that has landed. NEVER, or
    `never(reason)`: not even an empty pool would grant it. Compare the first two by `is`, and ask
    `is_final` for the last.

    Attributes:
        name: of one of these three.
        reason: why, for a user.
    """

    LATER: ClassVar["Refusal"]
    LOADING: ClassVar["Refusal"]
    NEVER: ClassVar["Refusal"]

    name: str
    reason: str = field(compare=False)

    @property
    def is_final(self) -> bool:
        """True if no release could ever end the refusal."""
        return self.name == "NEVER"

    def __deepcopy__(self, memo: dict[int, object]) -> "Refusal":
        return self

    def __repr__(self) -> str:
        return f"Refusal.{self.name}"


Refusal.LATER = Refusal("LATER", "the pool has no slots for it now")
Refusal.LOADING = Refusal("LOADING", "its tokens are on their way to the device")
Refusal.NEVER = Refusal("NEVER", "the memory policy can never hold it")


def never(reason: str) -> Refusal:
    """A refusal for good, with a reason of its own.

    Args:
        reason: why, for a user.
    """
    return Refusal(Refusal.NEVER.name, reason)


Answer: TypeAlias = Grant | Refusal
Answers: TypeAlias = list[Grant] | Refusal


class CacheHit:
    """The cached tokens of a sequence: the handle that `lookup` gives and `admit` takes.

    It pins nothing, and is valid until the policy changes other than by a `load` with it. A policy
    derives a class of its own, which remembers where the tokens are.
    """

    __slots__ = ()

    def num_cached(self, num_tokens: int) -> int:
        """Leading tokens on the device that an admission for num_tokens tokens would find.

        Args:
            num_tokens: tokens for which slots are wanted.
        """
        return 0

    def num_below(self, num_tokens: int) -> dict[str, int]:
        """Tokens behind these that lower tiers have for such an admission, by the tier's name.

        Args:
            num_tokens: tokens for which slots are wanted.
        """
        return {}


NO_HIT = CacheHit()


class Lease(NamedTuple):
    """Slots that stay allocated after their sequence is over, until `end_lease`.

    A transfer, a session's time to live or another engine still needs them.

    Attributes:
        lease_id: a number that the caller chooses.
    """

    lease_id: int


class Keep(Enum):
    """Contents that a released sequence leaves, besides a `Lease`: nothing that can be found, or
    what the policy caches.
    """

    NOTHING = "nothing"
    CACHED = "cached"


class Usage(NamedTuple):
    """A pool in slots. allocated + cached + in_transit + free = total; live <= held <= allocated.

    Attributes:
        total: of the pool.
        live: those that store a token, or will after the next iteration.
        held: those in a table, shared ones once.
        allocated: held slots and those that the allocator's rounding makes unusable.
        cached: unreferenced but findable.
        free: the rest.
        largest_free: the longest run of free and cached slots that one sequence could get.
        saved: slots that tables would need in addition to `held` if nothing were shared.
        in_transit: slots of no table that a transfer reads or writes.
    """

    total: int
    live: int
    held: int
    allocated: int
    cached: int
    free: int
    largest_free: int
    saved: int = 0
    in_transit: int = 0


class Fixed(NamedTuple):
    """A footprint of the same slots for any number of stored tokens.

    Attributes:
        slots: how many.
    """

    slots: int

    def waste(self, final_len: int) -> list[tuple[int, int]]:
        """(from_len, slots): from from_len stored tokens on, `slots` more will never be used.

        Args:
            final_len: tokens with which the sequence ends.
        """
        return [(0, self.slots - final_len)] if self.slots > final_len else []

    def slots_of(self, num_tokens: int) -> int:
        """Slots that such a sequence holds.

        Args:
            num_tokens: slots that it may write.
        """
        return self.slots


class Granular(NamedTuple):
    """A footprint of as many whole blocks as the stored tokens need.

    A policy that returns slots may have fewer: those of blocks that no later token reads.

    Attributes:
        size: tokens of a block.
        slots_per_token: one number for all sequences of a policy.
    """

    size: int
    slots_per_token: int = 1

    def waste(self, final_len: int) -> list[tuple[int, int]]:
        """(from_len, slots): from from_len stored tokens on, `slots` more will never be used.

        Args:
            final_len: tokens with which the sequence ends.
        """
        size, slots_per_token = self
        padding = -final_len % size
        return [(final_len + padding - size + 1, padding * slots_per_token)] if padding else []

    def slots_of(self, num_tokens: int) -> int:
        """Slots that such a sequence holds.

        Args:
            num_tokens: slots that it may write.
        """
        return -(-num_tokens // self.size) * self.size * self.slots_per_token


class Stepped(NamedTuple):
    """A footprint that rises in steps, such as doubling.

    Attributes:
        steps: (tokens, slots) in rising order: up to `tokens` tokens take `slots` slots.
    """

    steps: tuple[tuple[int, int], ...]

    def waste(self, final_len: int) -> list[tuple[int, int]]:
        """(from_len, slots): from from_len stored tokens on, `slots` more will never be used.

        Args:
            final_len: tokens with which the sequence ends.
        """
        events, from_len, wasted = [], 0, 0
        for tokens, slots in self.steps:
            if slots - final_len > wasted:
                events.append((from_len, slots - final_len - wasted))
                wasted = slots - final_len
            from_len = tokens + 1
        return events

    def slots_of(self, num_tokens: int) -> int:
        """Slots that such a sequence holds.

        Args:
            num_tokens: slots that it may write.
        """
        for tokens, slots in self.steps:
            if num_tokens <= tokens:
                return slots
        raise ValueError(
            f"Stepped: {num_tokens} tokens are beyond its last step, {self.steps[-1]} (add steps)"
        )


# The slots of a sequence as a function of its stored tokens, as plain data up to max_len.
# waste(final_len) lists (from_len, slots): from from_len stored tokens on, `slots` more of its
# slots will never be used if the sequence ends at final_len tokens (section 3.1).
Footprint: TypeAlias = Fixed | Granular | Stepped


class NonSequenceSlots(NamedTuple):
    """Slots that are not free although no sequence's table contains them.

    Attributes:
        pinned: registered prefixes, which tables may share.
        cached: unreferenced but findable.
        rounding: slots that an allocator's rounding makes unusable.
        in_transit: what transfers in the background read, write or need.
    """

    pinned: tuple[Extent, ...] = ()
    cached: tuple[Extent, ...] = ()
    rounding: tuple[Extent, ...] = ()
    in_transit: tuple[Extent, ...] = ()


FOOTPRINTS = (Fixed, Granular, Stepped)


def is_footprint(value: object) -> bool:
    """True if it is a footprint, and no subclass of one or of its numbers.

    A method of anything else would see the value that it is compared with: how long a sequence will
    be.
    """
    if type(value) is Fixed:
        return type(value.slots) is int
    return isinstance(value, FOOTPRINTS) and type(value) in FOOTPRINTS and all(map(is_plain, value))


def is_plain(value: object) -> bool:
    """True if it is an int, or a tuple of such, of Python's own types."""
    return type(value) is int or (type(value) is tuple and all(map(is_plain, value)))


def copies_between(
    source: Iterable[Extent], target: Iterable[Extent], num_slots: int
) -> tuple[Copy, ...]:
    """The copies that transfer the first num_slots slots of one table to another, for any extents
    of both.
    """
    copies: list[Copy] = []
    sources, targets = iter(source), iter(target)
    (src, left), (dst, space) = Extent(0, 0), Extent(0, 0)
    while num_slots > 0:
        if not left:
            src, left = next(sources)
        if not space:
            dst, space = next(targets)
        length = min(left, space, num_slots)
        if length:
            copies.append(Copy(src, dst, length))
        src, left, dst, space = src + length, left - length, dst + length, space - length
        num_slots -= length
    return tuple(copies)
