"""The changes of many spans at once: `changes_of` in 64 bits, as far as these hold it."""

from collections.abc import Sequence

import numpy as np

from testbed.core.errors import InputError
from testbed.engine.packed_rows import Counts, packed
from testbed.engine.totals import CHANGING, SpanGrowth, changes_of

MOST = float(1 << 62)  # 64 bits hold this, and what rounding may add


def changes_at_once(
    steps: Counts, durations_ps: Counts, grown: Sequence[SpanGrowth | None]
) -> tuple[Counts, list[int]]:
    """The same as `changes_of`, with a row for each kind of change, in the order of CHANGING."""
    places = [place for place, growth in enumerate(grown) if growth is not None]
    rows = np.zeros((len(CHANGING), len(grown)), np.int64)
    if not places:
        return rows, [0] * len(CHANGING)
    spans = steps[places], durations_ps[places]
    try:
        columns = _columns(list(filter(None, grown)))
    except InputError:  # a number has more than 64 bits
        columns = None
    if columns is None or _largest(*spans, columns) >= MOST:
        plain, over_time = changes_of(steps.tolist(), durations_ps.tolist(), grown)
        return packed(plain), over_time
    rows[:, places], over_time = _changes(*spans, columns)
    return rows, over_time


def _columns(grown: list[SpanGrowth]) -> list[Counts]:
    """Of each of the growths: its first three numbers, then those of its three Growths."""
    first_ps, growth_ps, slopes, *growths = zip(*grown, strict=True)
    own = packed([first_ps, growth_ps, slopes])  # by spans
    return [*own.T, *(column for growth in growths for column in packed(growth))]


def _largest(steps: Counts, durations_ps: Counts, columns: list[Counts]) -> float:
    """No span's sum over time, nor a part of one, is larger than this, but for rounding."""
    num, whole, first, growth, slope, *changing = (
        np.abs(column.astype(np.float64)) for column in (steps, durations_ps, *columns)
    )
    w0, w1, w2 = (sum(changing[power::3]) for power in range(3))
    sums = slope * (whole + (first + growth * num) * num * num)
    return float(np.max(sums + w0 * (whole + num) + w1 * (first + growth + 1) + w2 * growth))


def _changes(
    steps: Counts, durations_ps: Counts, columns: list[Counts]
) -> tuple[list[Counts], list[int]]:
    first_ps, growth_ps, slope, *started, h0, h1, h2, e0, e1, e2 = columns
    pairs = steps * (steps - 1) // 2

    def over_time(w0: Counts, w1: Counts, w2: Counts) -> int:
        return total(w0 * durations_ps - w1 * first_ps - growth_ps * ((w2 - w1) // 2))

    live_span = durations_ps + first_ps * pairs + growth_ps * (pairs * (2 * steps - 1) // 3)
    live, live_ps = slope * (pairs + steps), total(slope * live_span)
    internal, internal_ps = started[0] * steps - started[1], over_time(*started)
    taken, taken_ps = h0 * steps - h1, over_time(h0, h1, h2)
    cached, cached_ps = e1 - e0 * steps, -over_time(e0, e1, e2)
    changes = [live, taken - live - internal, internal, cached]
    return changes, [live_ps, taken_ps - live_ps - internal_ps, internal_ps, cached_ps]


def total(values: Counts) -> int:
    """The exact sum, which may have more than 64 bits."""
    return sum(values.tolist())
