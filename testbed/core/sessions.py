"""Sessions: requests that wait for the answers to earlier ones. A closed loop, whose times depend on the server."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace

import numpy as np
from numpy.typing import NDArray

from testbed.core.errors import InputError
from testbed.core.request import Column, Rows, Workload

Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Turns:
    """Which rows wait for which: row i goes out wait_s[i] after the last of the rows after[i] has ended.

    A row that waits for none goes out wait_s[i] after its session starts. session[i] counts sessions from 0 on, in the
    order in which they start. A row waits only for earlier rows of its own session. answer_s is how long a recorded
    server took to answer, 0 where nobody knows; only a guess of the order is made of it.
    """

    session: Column
    after: Sequence[tuple[int, ...]]
    wait_s: Seconds
    answer_s: Seconds

    def __post_init__(self) -> None:
        waits = np.isfinite(self.wait_s) & (self.wait_s >= 0)
        if not waits.all():
            row = int(np.argmin(waits))
            raise InputError(f"row {row}: it waits {self.wait_s[row]} s; a wait is a finite time of at least 0 s")
        for row, before in enumerate(self.after):
            if any(not 0 <= one < row or self.session[one] != self.session[row] for one in before):
                raise InputError(f"row {row} waits for rows {before}; it may only wait for earlier rows of its session")

    def __len__(self) -> int:
        return len(self.after)

    @property
    def num_sessions(self) -> int:
        """How many sessions there are."""
        return int(self.session.max()) + 1 if len(self) else 0

    def take(self, order: Column) -> "Turns":
        """All rows in another order, in which every row still comes after those that it waits for."""
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        after = [tuple(place[list(self.after[row])].tolist()) for row in order.tolist()]
        return Turns(self.session[order], after, self.wait_s[order], self.answer_s[order])

    def within(self, max_wait_s: float) -> "Turns":
        """The same with no wait longer than max_wait_s."""
        return replace(self, wait_s=np.minimum(self.wait_s, max_wait_s))


@dataclass(frozen=True, slots=True)
class SessionWorkload(Workload):
    """Rows that go out as their turns say, with `at_once` sessions open at any time while there are more.

    The first sessions start gap_ps apart, each later one when another has ended. arrival_ps is not known beforehand,
    and 0 everywhere.
    """

    at_once: int = 1
    gap_ps: int = 0

    @property
    def turns(self) -> Turns:
        """Which rows wait for which."""
        assert self.rows.turns is not None
        return self.rows.turns


def likely_order(turns: Turns, at_once: int, gap_s: float) -> Column:
    """The rows in the order in which they would go out if every answer took as long as its record says.

    What looks at a trace beforehand (Belady's order of eviction) sees it in this order; the run's own may differ.
    """
    sent_s = np.zeros(len(turns))
    ends_s = np.zeros(turns.num_sessions)
    for row, before in enumerate(turns.after):
        ready = max((sent_s[one] + turns.answer_s[one] for one in before), default=0.0)
        sent_s[row] = ready + turns.wait_s[row]
        session = turns.session[row]
        ends_s[session] = max(ends_s[session], sent_s[row] + turns.answer_s[row])
    starts_s = np.fromiter(_starts(ends_s.tolist(), at_once, gap_s), np.float64, len(ends_s))
    return np.argsort(sent_s + starts_s[turns.session], kind="stable")


def _starts(lasting_s: Sequence[float], at_once: int, gap_s: float) -> Iterator[float]:
    """When each session starts: the first ones gap_s apart, then one whenever another ends."""
    ends = [slot * gap_s + lasting for slot, lasting in enumerate(lasting_s[:at_once])]
    yield from (slot * gap_s for slot in range(len(ends)))
    heapify(ends)
    for lasting in lasting_s[at_once:]:
        yield ends[0]
        heapreplace(ends, ends[0] + lasting)


def in_likely_order(rows: Rows, at_once: int, gap_s: float) -> Rows:
    """Rows with turns, in the order in which they are likely to go out."""
    assert rows.turns is not None
    order = likely_order(rows.turns, at_once, gap_s)
    return replace(rows.take(order), turns=rows.turns.take(order))
