"""A run in Chrome's "Trace Event Format" (JSON object form), which Perfetto reads too.

Requests are nested B and E events on lanes, iterations are X events, and the pool and the queues
are C events. `ts` and `dur` are microseconds of simulated time; their six decimals are whole
picoseconds. The phases of requests come from the executed plans.
"""

import gzip
import heapq
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from testbed.build import build
from testbed.config import RunConfig
from testbed.core.errors import InputError
from testbed.core.request import PS, Incoming, Request, Workload
from testbed.core.sequence import SequenceGroup, SequenceStatus
from testbed.cost.model import UNBOUNDED
from testbed.engine.recorder import Columns, Recorder
from testbed.engine.simulation import simulate
from testbed.engine.totals import SpanMemory
from testbed.experiments.runs.whole_files import whole
from testbed.sched.plan import Plan

QUEUED, PREFILL, DECODE, PREEMPTED, SWAPPED = "queued", "prefill", "decode", "preempted", "swapped"
REQUESTS, ITERATIONS, POOL = 1, 2, 3
PROCESSES = {REQUESTS: "Requests", ITERATIONS: "Iterations", POOL: "KV pool and queues"}
COUNTS = ("iterations", "decode_seqs", "prefill_tokens", "preempted")
SLOTS, QUEUES = ("live", "reserved", "internal"), ("running", "waiting", "swapped")
COLUMNS = ("start_ps", "duration_ps", *COUNTS, *SLOTS, *QUEUES)
IDLE = dict.fromkeys((*SLOTS, *QUEUES), 0)
PS_PER_US = 10**6
Event = dict[str, Any]


@dataclass
class Life:
    """A request with the phases that it went through.

    begun: name and begin (ps) of each phase; a phase lasts until the next one or the end.
    end_ps: when the request ended, at the latest when the run did.
    """

    request: Request | Incoming
    begun: list[tuple[str, int]]
    end_ps: int

    def begin(self, name: str, now_ps: int) -> None:
        """Begin a phase, unless the request is in it already."""
        current, _ = self.begun[-1]
        if current != name:
            self.begun.append((name, now_ps))

    def overlaps(self, start_ps: int, stop_ps: int) -> bool:
        """Whether a part of it lies in [start_ps, stop_ps)."""
        return self.request.arrival_ps < min(stop_ps, self.end_ps) and self.end_ps > start_ps


class PhaseRecorder(Recorder):
    """A recorder that also stores when each phase of every arrived request began.

    - queued: waits for its first slots
    - prefill: from the iteration of its first chunk
    - decode: from its first token, or from its swap-in
    - preempted: its slots were released, and it will be recomputed
    - swapped: its slots are on the host
    """

    def __init__(self) -> None:
        super().__init__()
        self._lives: dict[int, Life] = {}

    def first_tokens(self, groups: list[SequenceGroup], now_ps: int) -> None:
        """Their prefill has finished, for the first time or after recompute."""
        super().first_tokens(groups, now_ps)
        for group in groups:
            self._lives[group.request.request_id].begin(DECODE, now_ps)

    def served(self, request: Request, group: SequenceGroup, now_ps: int) -> None:
        """The request has finished."""
        super().served(request, group, now_ps)
        life = self._life(request)
        life.request, life.end_ps = request, now_ps

    def rejected(self, request: Request, reason: str) -> None:
        """The request was rejected when the scheduler first considered it."""
        super().rejected(request, reason)
        self._life(request).end_ps = request.arrival_ps

    def cancelled(self, request: Request, group: SequenceGroup, now_ps: int) -> None:
        """The request was cancelled."""
        super().cancelled(request, group, now_ps)
        self._life(request).end_ps = now_ps

    def span(
        self,
        start_ps: int,
        duration_ps: int,
        steps: int,
        plan: Plan,
        waiting: int,
        swapped: int,
        memory: SpanMemory,
    ) -> None:
        """Change the phase of the requests that this plan preempts, swaps in or prefills."""
        super().span(start_ps, duration_ps, steps, plan, waiting, swapped, memory)
        for group in plan.preempted:
            to_host = group.status is SequenceStatus.SWAPPED
            self._life(group.request).begin(SWAPPED if to_host else PREEMPTED, start_ps)
        for group in plan.swapped_in:
            self._life(group.request).begin(DECODE, start_ps)
        for chunk in plan.chunks:
            self._life(chunk.group.request).begin(PREFILL, start_ps)

    def lives(self, workload: Workload) -> list[Life]:
        """Every request that arrived before the end of the run, in order of arrival.

        If the workload has no arrival times, requests that the scheduler has not yet considered are
        missing.
        """
        if workload.arrival_ps.any():
            for request in workload:
                if request.arrival_ps <= self.end_ps:
                    self._life(request)
        for life in self._lives.values():
            life.end_ps = min(life.end_ps, self.end_ps)
        return sorted(self._lives.values(), key=lambda life: life.request.arrival_ps)

    def _life(self, request: Request | Incoming) -> Life:
        """The life of a request, which begins in the queue."""
        return self._lives.setdefault(
            request.request_id, Life(request, [(QUEUED, request.arrival_ps)], UNBOUNDED)
        )


def _lanes(lives: Sequence[Life]) -> list[int]:
    """The lane of each request: the lowest that is free when it arrives.

    `lives` are in order of arrival.
    """
    free_lanes: list[int] = []
    taken: list[tuple[int, int]] = []  # (end_ps, lane)
    lanes = []
    for life in lives:
        while taken and taken[0][0] <= life.request.arrival_ps:
            _, freed = heapq.heappop(taken)
            heapq.heappush(free_lanes, freed)
        lane = heapq.heappop(free_lanes) if free_lanes else len(taken)
        heapq.heappush(taken, (life.end_ps, lane))
        lanes.append(lane)
    return lanes


def _request_events(life: Life, lane: int) -> Iterator[Event]:
    """Begin and end of a request, and of its phases inside it."""
    place = {"pid": REQUESTS, "tid": lane}
    request = life.request
    arguments = {"prompt_tokens": request.prompt_len, "num_seqs": request.num_seqs}
    if isinstance(request, Request):  # a request that was cut off has no recorded end
        arguments["output_tokens"] = request.output_len
    common = {"cat": "request", "name": f"request {request.request_id}", **place}
    yield {"ph": "B", "ts": us(request.arrival_ps), "args": arguments, **common}
    for (name, start_ps), (_, end_ps) in pairwise([*life.begun, ("", life.end_ps)]):
        if end_ps > start_ps:
            yield {"ph": "B", "cat": "phase", "name": name, "ts": us(start_ps), **place}
            yield {"ph": "E", "cat": "phase", "name": name, "ts": us(end_ps), **place}
    yield {"ph": "E", "ts": us(life.end_ps), **common}


def _rejection_event(request: Request | Incoming, reason: str) -> Event:
    """An instant at which a request was rejected."""
    return {
        "ph": "i",
        "s": "p",
        "cat": "request",
        "name": f"request {request.request_id} rejected",
        "pid": REQUESTS,
        "tid": 0,
        "ts": us(request.arrival_ps),
        "args": {"reason": reason},
    }


def _iteration_events(
    spans: Columns, num_slots: int, start_ps: int, stop_ps: int
) -> Iterator[Event]:
    """The spans of iterations that begin in [start_ps, stop_ps), with the counters at each.

    Between spans the counters are 0.
    """
    is_shown = (spans["start_ps"] >= start_ps) & (spans["start_ps"] < stop_ps)
    shown = [spans[name][is_shown].tolist() for name in COLUMNS]
    previous_end = start_ps
    for values in zip(*shown, strict=True):
        span = dict(zip(COLUMNS, values, strict=True))
        start = span["start_ps"]
        if start > previous_end:
            yield from _counters(previous_end, num_slots, IDLE)
        yield _span_event(span)
        yield from _counters(start, num_slots, span)
        previous_end = start + span["duration_ps"]
    yield from _counters(previous_end, num_slots, IDLE)


def _span_event(span: Mapping[str, int]) -> Event:
    """Iterations of one batch, named by the work that they do."""
    kinds = []
    if span["prefill_tokens"]:
        kinds.append("prefill")
    if span["decode_seqs"]:
        kinds.append("decode")
    repeats = f" x {span['iterations']}" if span["iterations"] > 1 else ""
    return {
        "ph": "X",
        "cat": "iteration",
        "name": " + ".join(kinds or ["move"]) + repeats,
        "ts": us(span["start_ps"]),
        "dur": us(span["duration_ps"]),
        "pid": ITERATIONS,
        "tid": 0,
        "args": {name: span[name] for name in COUNTS},
    }


def _counters(now_ps: int, num_slots: int, row: Mapping[str, float]) -> Iterator[Event]:
    """The slots by kind and the lengths of the queues, from now on."""
    slots = {name: round(row[name], 3) for name in SLOTS}
    slots["rest"] = round(num_slots - sum(slots.values()), 3)
    for name, values in (("slots", slots), ("requests", {name: row[name] for name in QUEUES})):
        yield {
            "ph": "C",
            "cat": "pool",
            "name": name,
            "ts": us(now_ps),
            "pid": POOL,
            "tid": 0,
            "args": values,
        }


def us(time_ps: int) -> float:
    """A time in picoseconds as microseconds."""
    return time_ps / PS_PER_US


def trace_of(
    config: RunConfig, start_s: float = 0.0, stop_s: float | None = None
) -> tuple[dict[str, Any], float]:
    """Simulate a run; return its trace and the end of the simulation (s).

    The trace has the events from start_s to stop_s (s), by default to the end of the run, in order
    of time.
    """
    setup, recorder = build(config), PhaseRecorder()
    setup.check_alone("the timeline")
    start_ps, stop_ps, end_ps = setup.part_ps(start_s, stop_s)
    simulate(
        setup.workload,
        setup.scheduler,
        setup.cost,
        setup.model.max_len,
        stop_ps=end_ps,
        recorder=recorder,
        fast_forward=setup.config.fast_forward,
        beams=setup.beams,
        lengths=setup.lengths,
    )
    if start_ps >= recorder.end_ps:
        raise InputError(
            f"--from {start_s:g}: the run ends at {recorder.end_ps / PS:g} s, there is nothing to "
            f"show"
        )
    lives = recorder.lives(setup.workload)
    shown = [life for life in lives if life.overlaps(start_ps, stop_ps)]
    lanes = _lanes(shown)
    timed = _lane_events(shown, lanes)
    timed += _rejections(lives, recorder.rejections, start_ps, stop_ps)
    spans = recorder.spans.columns()
    timed += _iteration_events(spans, setup.pool.num_slots, start_ps, stop_ps)
    timed.sort(key=lambda event: event["ts"])  # stable: B and E of a lane keep their order
    events = [*_name_events(num_lanes=1 + max(lanes, default=0)), *timed]
    trace = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": dict(setup.description)}
    return trace, recorder.end_ps / PS


def _lane_events(lives: Sequence[Life], lanes: Sequence[int]) -> list[Event]:
    """The events of all requests, lane by lane.

    So a request ends before the next one on its lane begins, even at the same time.
    """
    in_lanes = sorted(zip(lanes, lives, strict=True), key=lambda pair: pair[0])
    events: list[Event] = []
    for lane, life in in_lanes:
        events += _request_events(life, lane)
    return events


def _rejections(
    lives: Sequence[Life], reasons: Mapping[int, str], start_ps: int, stop_ps: int
) -> Iterator[Event]:
    """The requests rejected in [start_ps, stop_ps); reasons: by request id."""
    for life in lives:
        request = life.request
        if request.request_id in reasons and start_ps <= request.arrival_ps < stop_ps:
            yield _rejection_event(request, reasons[request.request_id])


def _name_events(num_lanes: int) -> Iterator[Event]:
    """The names of the processes and threads, in the order in which they are shown."""
    for pid, name in PROCESSES.items():
        yield _metadata(pid, 0, "process_name", {"name": name})
        yield _metadata(pid, 0, "process_sort_index", {"sort_index": pid})
    for lane in range(num_lanes):
        yield _metadata(REQUESTS, lane, "thread_name", {"name": f"lane {lane}"})
    yield _metadata(ITERATIONS, 0, "thread_name", {"name": "GPU"})


def _metadata(pid: int, tid: int, name: str, arguments: Mapping[str, Any]) -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": name, "args": arguments}


def write_trace(path: Path, trace: dict[str, Any]) -> None:
    """Write a trace as JSON, compressed if the name ends in .gz; Perfetto opens both."""
    content = (json.dumps(trace, separators=(",", ":")) + "\n").encode()
    with whole(path) as temporary:
        temporary.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
