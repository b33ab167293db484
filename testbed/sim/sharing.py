"""How often a held slot is used: exact sums from which the mean of a ratio comes (Figure 15)."""

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from math import fsum
from typing import NamedTuple, TypeAlias

from testbed.core.batch import Batch
from testbed.sim.spans import Span


class Shared(NamedTuple):
    """An iteration that held `held` slots and saved `saved`; saved_ps: the same times its picoseconds."""

    held: int
    saved: int
    saved_ps: int


NO_SHARED: tuple[Shared, ...] = ()

# By slots held, the slots saved: summed over iterations, and integrated over picoseconds. Whole numbers, so that spans
# and single steps give the same sums; the ratio is taken once, at the end.
Sharing: TypeAlias = Mapping[int, tuple[int, int]]


def with_shared(sharing: Sharing, rows: Iterable[Shared]) -> Sharing:
    """The sums with these iterations."""
    sums = dict(sharing)
    for held, saved, saved_ps in rows:
        count, time = sums.get(held, (0, 0))
        sums[held] = count + saved, time + saved_ps
    return sums


def without(later: Sharing, earlier: Sharing) -> Sharing:
    """What was added since `earlier`."""
    pairs = ((held, sums, earlier.get(held, (0, 0))) for held, sums in later.items())
    return {held: (a - c, b - d) for held, (a, b), (c, d) in pairs if (a, b) != (c, d)}


def mean_ratio(sharing: Sharing, which: int, whole: int) -> float:
    """The mean of (held + saved) / held, over iterations (which = 0) or over time (which = 1)."""
    return 1 + fsum(sums[which] / held for held, sums in sorted(sharing.items())) / whole


def shared_once(held: int, saved: int, duration_ps: int) -> tuple[Shared, ...]:
    """One iteration, if it saved anything."""
    return (Shared(held, saved, saved * duration_ps),) if saved else NO_SHARED


def shared_over(span: Span, held: int, saved: int, taken: Seq[int]) -> tuple[Shared, ...]:
    """Every iteration of a span; `taken` slots more are held after each, in turn, and all save the same."""
    steps, _, price_ps, growth_ps = span
    rows = [Shared(held, saved, saved * price_ps)]
    for step in range(steps - 1):
        held, price_ps = held + taken[step % len(taken)], price_ps + growth_ps
        rows.append(Shared(held, saved, saved * price_ps))
    return tuple(rows)


def taken_from_now(batch: Batch, block_size: int) -> list[int]:
    """Slots that the members take at each of the next block_size steps, after which it goes round.

    It walks the batch, and only where slots are shared: an index of the meter's would lie on the batch, where policies
    could reach it and, behind it, the future.
    """
    taken, extended = [0] * block_size, batch.extended
    for seq in batch:
        taken[-(seq.room_offset + extended) % block_size] += block_size
    return taken
