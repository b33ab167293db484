"""The Chrome trace event format ("Trace Event Format", JSON object form), which Perfetto reads too.

Requests are nested B and E events on lanes, iterations X events, the pool and the queues C events. `ts` and `dur` are
in microseconds of simulated time, six decimals of which are whole picoseconds.
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from testbed.core.request import Request
from testbed.experiments.timeline.phases import Life
from testbed.sim.recorder import Columns

REQUESTS, ITERATIONS, POOL = 1, 2, 3
PROCESSES = {REQUESTS: "Requests", ITERATIONS: "Iterations", POOL: "KV pool and queues"}
SLOTS, QUEUES = ("live", "reserved", "internal"), ("running", "waiting", "swapped")
PS_PER_US = 10**6
Event = dict[str, Any]


def chrome_trace(
    lives: Sequence[Life], spans: Columns, num_slots: int, what: Mapping[str, Any], start_ps: int, stop_ps: int
) -> dict[str, Any]:
    """The content of the file: all events in [start_ps, stop_ps), in order of time."""
    shown = [life for life in lives if life.phases and overlaps(life, start_ps, stop_ps)]
    timed = [
        *requests(shown),
        *rejections(lives, start_ps, stop_ps),
        *iterations(spans, start_ps, stop_ps),
        *pool(spans, num_slots, start_ps, stop_ps),
    ]
    timed.sort(key=lambda event: event["ts"])  # stable: B and E of a lane keep their order
    names = metadata(1 + max(lanes(shown), default=0))
    return {"traceEvents": [*names, *timed], "displayTimeUnit": "ms", "otherData": dict(what)}


def overlaps(life: Life, start_ps: int, stop_ps: int) -> bool:
    """Whether a request's life overlaps [start_ps, stop_ps)."""
    return life.phases[0].start_ps < stop_ps and life.phases[-1].end_ps > start_ps


def metadata(num_lanes: int) -> Iterator[Event]:
    """Names for processes and lanes."""
    for pid, name in PROCESSES.items():
        yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": name}}
        yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_sort_index", "args": {"sort_index": pid}}
    for lane in range(num_lanes):
        yield {"ph": "M", "pid": REQUESTS, "tid": lane, "name": "thread_name", "args": {"name": f"lane {lane}"}}
    yield {"ph": "M", "pid": ITERATIONS, "tid": 0, "name": "thread_name", "args": {"name": "GPU"}}


def requests(lives: Sequence[Life]) -> list[Event]:
    """Requests with nested phases, lane by lane, so that one ends before the next begins at the same time."""
    by_lane: dict[int, list[Life]] = {}
    for life, lane in zip(lives, lanes(lives), strict=True):
        by_lane.setdefault(lane, []).append(life)
    return [event for lane, of_lane in sorted(by_lane.items()) for life in of_lane for event in nested(life, lane)]


def lanes(lives: Sequence[Life]) -> list[int]:
    """The lane of each request, the lowest that is free at its arrival; `lives` are in order of arrival."""
    free: list[int] = []
    taken: list[tuple[int, int]] = []
    found = []
    for life in lives:
        while taken and taken[0][0] <= life.request.arrival_ps:
            heapq.heappush(free, heapq.heappop(taken)[1])
        lane = heapq.heappop(free) if free else len(taken)
        heapq.heappush(taken, (end_ps(life), lane))
        found.append(lane)
    return found


def end_ps(life: Life) -> int:
    """When the request finished, was rejected or was cut off by the run's end."""
    return life.phases[-1].end_ps if life.phases else life.request.arrival_ps


def nested(life: Life, lane: int) -> Iterator[Event]:
    """One request's events, in order."""
    place = {"pid": REQUESTS, "tid": lane}
    r, first, last = life.request, life.phases[0], life.phases[-1]
    arguments = {"prompt_tokens": r.prompt_len, "num_seqs": r.num_seqs}
    if isinstance(r, Request):  # a request that was cut off has no recorded end
        arguments["output_tokens"] = r.output_len
    name = f"request {r.request_id}"
    yield {"ph": "B", "cat": "request", "name": name, "ts": us(first.start_ps), **place, "args": arguments}
    for phase in life.phases:
        yield {"ph": "B", "cat": "phase", "name": phase.name, "ts": us(phase.start_ps), **place}
        yield {"ph": "E", "cat": "phase", "name": phase.name, "ts": us(phase.end_ps), **place}
    yield {"ph": "E", "cat": "request", "name": name, "ts": us(last.end_ps), **place}


def iterations(spans: Columns, start_ps: int, stop_ps: int) -> Iterator[Event]:
    """One event per span of identical iterations."""
    names = ("iterations", "decode_seqs", "prefill_tokens", "preempted")
    for start, duration, *counts in rows(spans, ("start_ps", "duration_ps", *names), start_ps, stop_ps):
        arguments = dict(zip(names, counts, strict=True))
        kinds = [kind for kind, there in (("prefill", counts[2]), ("decode", counts[1])) if there]
        times = f" x {counts[0]}" if counts[0] > 1 else ""
        yield {
            "ph": "X", "cat": "iteration", "name": " + ".join(kinds or ["move"]) + times, "ts": us(start),
            "dur": us(duration), "pid": ITERATIONS, "tid": 0, "args": arguments,
        }  # fmt: skip


def pool(spans: Columns, num_slots: int, start_ps: int, stop_ps: int) -> Iterator[Event]:
    """The pool in slots by kind, and the numbers of running, waiting and swapped requests, for each span."""
    before = start_ps
    for start, duration, *seen in rows(spans, ("start_ps", "duration_ps", *SLOTS, *QUEUES), start_ps, stop_ps):
        if start > before:
            yield from counted(before, num_slots, [0.0] * len(seen))
        yield from counted(start, num_slots, seen)
        before = start + duration
    yield from counted(before, num_slots, [0.0] * (len(SLOTS) + len(QUEUES)))


def counted(now_ps: int, num_slots: int, seen: Sequence[float]) -> Iterator[Event]:
    """Both counters at one time; slots that are not held are the rest."""
    held = [round(value, 3) for value in seen[: len(SLOTS)]]
    slots = {**dict(zip(SLOTS, held, strict=True)), "rest": round(num_slots - sum(held), 3)}
    queues = dict(zip(QUEUES, seen[len(SLOTS) :], strict=True))
    for name, values in (("slots", slots), ("requests", queues)):
        yield {"ph": "C", "cat": "pool", "name": name, "ts": us(now_ps), "pid": POOL, "tid": 0, "args": values}


def rejections(lives: Sequence[Life], start_ps: int, stop_ps: int) -> Iterator[Event]:
    """An instant event for each rejected request."""
    for life in lives:
        if life.rejected and start_ps <= life.request.arrival_ps < stop_ps:
            name, arguments = f"request {life.request.request_id} rejected", {"reason": life.rejected}
            place = {"pid": REQUESTS, "tid": 0, "ts": us(life.request.arrival_ps)}
            yield {"ph": "i", "s": "p", "cat": "request", "name": name, **place, "args": arguments}


def rows(spans: Columns, names: Sequence[str], start_ps: int, stop_ps: int) -> Iterator[tuple[Any, ...]]:
    """These columns of the spans that begin in [start_ps, stop_ps)."""
    begun = spans["start_ps"]
    seen = (begun >= start_ps) & (begun < stop_ps)
    return zip(*(spans[name][seen].tolist() for name in names), strict=True)


def us(time_ps: int) -> float:
    """Microseconds."""
    return time_ps / PS_PER_US
