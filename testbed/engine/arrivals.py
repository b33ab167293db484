"""Arrival times: time stamps for a trace's rows."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace
from typing import ClassVar

import numpy as np

from testbed.core.errors import InputError
from testbed.core.request import PS, Column, Rows, Turns, Workload
from testbed.core.units import (
    LAST_S,
    Positive,
    PositiveCount,
    PositiveSeconds,
    RequestsPerSecond,
    Seconds,
)

SLOTS_AT_ONCE = 1 << 20
MAX_SLOTS = 10**9
MAX_BURST = 3_000_000


class ArrivalProcess(ABC):
    """Draws arrival times; the same seed gives the same times.

    Attributes:
        replays: it plays back time stamps, so it needs the whole trace.
    """

    replays: ClassVar[bool] = False

    @abstractmethod
    def times_ps(self, rows: Rows | None, seed: int) -> Column:
        """Arrival times in order, in picoseconds.

        Args:
            rows: a whole trace if the process replays time stamps, else None.
            seed: of what is drawn.
        """


def positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise InputError(key=f"arrivals.{name}", value=value, problem="must be above 0")


class Poisson(ArrivalProcess):
    """`rate` requests a second for duration_s seconds, exponential gaps."""

    burstiness = 1.0

    def __init__(self, rate: RequestsPerSecond, duration_s: PositiveSeconds) -> None:
        positive(rate=rate, duration_s=duration_s)
        self.rate = rate
        self.duration_s = duration_s

    def times_ps(self, rows: Rows | None, seed: int) -> Column:
        return renewal_times(
            np.random.default_rng([seed, 1]), 1 / self.burstiness, self.rate, self.duration_s
        )


class Gamma(Poisson):
    """Gaps from a gamma distribution; burstiness is their squared coefficient of variation (1:
    Poisson).
    """

    def __init__(
        self, rate: RequestsPerSecond, duration_s: PositiveSeconds, burstiness: Positive
    ) -> None:
        super().__init__(rate, duration_s)
        positive(burstiness=burstiness)
        self.burstiness = burstiness


class Slotted(ArrivalProcess):
    """The artifact's recipe: a Poisson count for every slot of 10 ms, all of it arriving at the
    slot's start.
    """

    def __init__(
        self, rate: RequestsPerSecond, duration_s: PositiveSeconds, slot_s: PositiveSeconds = 0.01
    ) -> None:
        positive(rate=rate, duration_s=duration_s, slot_s=slot_s)
        excess_s = abs(round(duration_s / slot_s) * slot_s - duration_s)
        if slot_s < 1 / PS or duration_s / slot_s > MAX_SLOTS or excess_s > duration_s / MAX_SLOTS:
            raise InputError(
                key="arrivals.duration_s",
                value=duration_s,
                problem=(
                    f"must be a whole number of slots of arrivals.slot_s={slot_s}, of at least "
                    f"1e-12 s (1 ps) each, and at most {MAX_SLOTS:,}"
                ),
            )
        self.rate = rate
        self.duration_s = duration_s
        self.slot_s = slot_s

    def times_ps(self, rows: Rows | None, seed: int) -> Column:
        # The artifact draws from NumPy's legacy generator, whose stream is frozen.
        expected_requests(self.rate, self.duration_s)
        rng, num_slots = np.random.RandomState(seed), round(self.duration_s / self.slot_s)
        times = [np.empty(0, np.int64)]
        for start in range(
            0, num_slots, SLOTS_AT_ONCE
        ):  # a million seconds are a hundred million slots
            draws = rng.poisson(self.rate * self.slot_s, size=min(SLOTS_AT_ONCE, num_slots - start))
            used = np.flatnonzero(draws)
            times.append(np.repeat((start + used) * round(self.slot_s * PS), draws[used]))
        return np.concatenate(times)


class Replay(ArrivalProcess):
    """The trace's own time stamps, `speedup` times as fast."""

    replays: ClassVar[bool] = True

    def __init__(self, speedup: Positive = 1.0) -> None:
        positive(speedup=speedup)
        self.speedup = speedup

    def times_ps(self, rows: Rows | None, seed: int) -> Column:
        if rows is None or rows.arrival_s is None:
            raise InputError(
                key="arrivals",
                value="replay",
                problem="needs a trace with time stamps: this has none",
                remedy="choose arrivals=poisson",
            )
        times_s = rows.arrival_s / self.speedup
        if not np.all(np.abs(times_s) <= LAST_S):  # NaN is no time
            worst = np.abs(times_s).argmax()
            raise InputError(
                key="the trace",
                problem=(
                    f"has a request at {rows.arrival_s[worst]:,.6g} s, played back "
                    f"{self.speedup:g} times as fast; time ends at {LAST_S:,} s"
                ),
                remedy="shorten the trace or raise arrivals.speedup",
            )
        return np.rint(times_s * PS).astype(np.int64)


class AnswerDrivenWorkload(Workload):
    """Rows that go out as answers come: arrival_ps is the earliest time of each, 0 if answers
    alone decide.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class SessionWorkload(AnswerDrivenWorkload):
    """Rows that go out as their turns say, with `at_once` sessions open at any time while there are
    more.

    The first sessions start gap_ps apart, each later one when another has ended.
    """

    at_once: int = 1
    gap_ps: int = 0

    @property
    def turns(self) -> Turns:
        assert self.rows.turns is not None
        return self.rows.turns


@dataclass(frozen=True, slots=True)
class BoundedWorkload(AnswerDrivenWorkload):
    """Rows that go out in their order at arrival_ps, but later if max_in_flight of them are
    unanswered: the next one goes out when an answer ends.
    """

    max_in_flight: int = 1


class AnswerDriven(ArrivalProcess):
    """A closed loop, whose requests go out as answers come: it makes the workload itself.

    Attributes:
        num_requests: rows to take from the trace; None: all of a trace that has an end.
    """

    num_requests: int | None = None

    def times_ps(self, rows: Rows | None, seed: int) -> Column:
        """Refused: each time depends on when an answer ends.

        Args:
            rows: not read.
            seed: not read.
        """
        raise InputError(
            key="arrivals",
            problem=(
                f"{type(self).__name__} has no arrival times (each depends on when an answer ends)"
            ),
        )

    @abstractmethod
    def workload(self, rows: Rows, num_seqs: int, beam: bool, seed: int) -> Workload:
        """The rows with the rule by which they go out.

        Args:
            rows: of the trace.
            num_seqs: sequences of a row that says none.
            beam: whether these are a beam.
            seed: of what the rule draws.
        """

    def check_no_turns(self, rows: Rows) -> None:
        """Raise InputError if some rows wait for the answers to others.

        Args:
            rows: of the trace.
        """
        if rows.turns is not None:
            raise InputError(
                key="arrivals",
                value=type(self).__name__,
                problem="this trace says which request waits for which answer, and its think times",
                remedy="choose arrivals=sessions, whose at_once is the concurrency",
            )


class Concurrency(AnswerDriven):
    """A closed loop of `concurrency` clients without think time, as `vllm bench serve
    --max-concurrency` with an infinite rate: the next request goes out when an answer ends.
    """

    def __init__(
        self, concurrency: PositiveCount = 32, num_requests: PositiveCount | None = 1000
    ) -> None:
        positive(concurrency=concurrency)
        if num_requests is not None:
            positive(num_requests=num_requests)
        self.concurrency = concurrency
        self.num_requests = num_requests

    def workload(self, rows: Rows, num_seqs: int, beam: bool, seed: int) -> BoundedWorkload:
        """All rows in their order; refused if some wait for the answers to others."""
        self.check_no_turns(rows)
        at_once = np.zeros(len(rows), np.int64)
        return BoundedWorkload(rows, at_once, num_seqs, beam, self.concurrency)


class Sessions(AnswerDriven):
    """A closed loop: a session's next request goes out its think time (max_think_s at most) after
    the last answer.
    """

    def __init__(
        self,
        at_once: PositiveCount = 16,
        start_gap_s: Seconds = 10.0,
        max_think_s: Seconds | None = None,
    ) -> None:
        if at_once < 1:
            raise InputError(
                key="arrivals.at_once", value=at_once, problem="must be at least 1 session"
            )
        self.at_once = at_once
        self.start_gap_s = start_gap_s
        self.max_think_s = max_think_s

    def workload(self, rows: Rows, num_seqs: int, beam: bool, seed: int) -> SessionWorkload:
        """The rows of a whole trace that says which of them wait for others, or to which session
        each belongs.
        """
        turns = rows.turns if rows.turns is not None else turns_in_order(rows)
        if turns is None:
            raise InputError(
                key="arrivals",
                value="sessions",
                problem="needs a trace that says which request waits for which answer",
                remedy=(
                    "trace=agent_sessions, trace=guidellm, or a CSV with a column session; "
                    "arrivals=closed_loop sends any trace by concurrency"
                ),
            )
        if self.max_think_s is not None:
            turns = replace(turns, wait_s=np.minimum(turns.wait_s, self.max_think_s))
        order = likely_order(turns, self.at_once, self.start_gap_s)
        rows = replace(rows.take(order), turns=turns.take(order), session=None)
        unknown = np.zeros(len(rows), np.int64)
        return SessionWorkload(
            rows, unknown, num_seqs, beam, self.at_once, round(self.start_gap_s * PS)
        )


def turns_in_order(rows: Rows) -> Turns | None:
    """Each row after the one before it in its session, and its think time; None without
    sessions.
    """
    if rows.session is None:
        return None
    number_of: dict[int, int] = {}
    session = [number_of.setdefault(name, len(number_of)) for name in rows.session.tolist()]
    last: dict[int, int] = {}
    after: list[tuple[int, ...]] = []
    for row, number in enumerate(session):
        after.append((last[number],) if number in last else ())
        last[number] = row
    wait_s = np.zeros(len(rows)) if rows.think_s is None else rows.think_s
    return Turns(np.array(session, dtype=np.int64), after, wait_s, np.zeros(len(rows)))


def expected_requests(rate: float, duration_s: float) -> float:
    """The mean number of arrivals. Raises MemoryError for numbers of 8 bytes that no memory has."""
    expected = rate * duration_s
    if expected > sys.maxsize / 8:
        raise MemoryError(f"{expected:.3g} are expected")
    return expected


def renewal_times(rng: np.random.Generator, shape: float, rate: float, duration_s: float) -> Column:
    """Arrivals before duration_s of a renewal process with gamma gaps of mean 1 / rate."""
    expected = expected_requests(rate, duration_s)
    times, start, drawn = [np.empty(0)], 0.0, 0
    while start < duration_s:
        drawn += len(times[-1])
        if drawn > 10 * expected + MAX_BURST:
            raise InputError(
                key="arrivals.burstiness",
                value=f"{1 / shape:g}",
                problem=(
                    f"of {expected:,.0f} requests that are expected in {duration_s:g} s, {drawn:,} "
                    "come at once"
                ),
                remedy="choose less",
            )
        gaps = rng.gamma(shape, 1 / (rate * shape), size=int(expected * 1.1) + 64)
        times.append(start + np.cumsum(gaps))
        start = times[-1][-1]
    seconds = np.concatenate(times)
    return np.rint(seconds[seconds < duration_s] * PS).astype(np.int64)


def likely_order(turns: Turns, at_once: int, gap_s: float) -> Column:
    """The rows in the order of sending if answers take as long as recorded, which Belady's order
    sees beforehand.
    """
    sent_s = np.zeros(len(turns))
    ends_s = np.zeros(turns.num_sessions)
    for row, before in enumerate(turns.after):
        ready = max((sent_s[other] + turns.answer_s[other] for other in before), default=0.0)
        sent_s[row] = ready + turns.wait_s[row]
        session = turns.session[row]
        ends_s[session] = max(ends_s[session], sent_s[row] + turns.answer_s[row])
    starts_s = np.fromiter(_starts(ends_s.tolist(), at_once, gap_s), np.float64, len(ends_s))
    return np.argsort(sent_s + starts_s[turns.session], kind="stable")


def _starts(lasting_s: Sequence[float], at_once: int, gap_s: float) -> Iterator[float]:
    ends = [slot * gap_s + lasting for slot, lasting in enumerate(lasting_s[:at_once])]
    yield from (slot * gap_s for slot in range(len(ends)))
    heapify(ends)
    for lasting in lasting_s[at_once:]:
        yield ends[0]
        heapreplace(ends, ends[0] + lasting)
