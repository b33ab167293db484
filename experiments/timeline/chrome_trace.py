"""The Chrome trace event format ("Trace Event Format", JSON object form), which Perfetto reads too.

Requests are nested B and E events on lanes, iterations X events, the pool and the queues C events.
`ts` and `dur` are in microseconds of simulated time, six decimals of which are whole picoseconds.
Phases come from the executed plans.
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
    """A request, the phases that it began, with the time of each in picoseconds, and when it ended,
    at the latest with the run. A phase lasts until the next one or the end.
    """

    request: Request | Incoming
    begun: list[tuple[str, int]]
    end_ps: int

    def begin(self, name: str, now_ps: int) -> None:
        """Begin a phase, unless it is the one that lasts."""
        if self.begun[-1][0] != name:
            self.begun.append((name, now_ps))


class PhaseRecorder(Recorder):
    """A recorder that also stores when the phases of every arrived request began. queued: waiting
    for its first slots. prefill: from the iteration of its first chunk. decode: from its first
    token, or from its swap-in. preempted: released, to be recomputed. swapped: on the host.
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
        """Requests that this plan preempts, swaps in or prefills change their phase at its
        start.
        """
        super().span(start_ps, duration_ps, steps, plan, waiting, swapped, memory)
        for group in plan.preempted:
            to_host = group.status is SequenceStatus.SWAPPED
            self._life(group.request).begin(SWAPPED if to_host else PREEMPTED, start_ps)
        for group in plan.swapped_in:
            self._life(group.request).begin(DECODE, start_ps)
        for chunk in plan.chunks:
            self._life(chunk.group.request).begin(PREFILL, start_ps)

    def lives(self, workload: Workload) -> list[Life]:
        """Every request of the workload that arrived before the end of the run, in order of
        arrival. In a workload without known arrival times, requests that the scheduler has not
        considered are missing.
        """
        for request in workload if workload.arrival_ps.any() else ():
            if request.arrival_ps <= self.end_ps:
                self._life(request)
        for life in self._lives.values():
            life.end_ps = min(life.end_ps, self.end_ps)
        return sorted(self._lives.values(), key=lambda life: life.request.arrival_ps)

    def _life(self, request: Request | Incoming) -> Life:
        return self._lives.setdefault(
            request.request_id, Life(request, [(QUEUED, request.arrival_ps)], UNBOUNDED)
        )


def _lanes(lives: Sequence[Life]) -> list[int]:
    """The lane of each request, the lowest that is free at its arrival; `lives` are in order of
    arrival.
    """
    free: list[int] = []
    taken: list[tuple[int, int]] = []
    found = []
    for life in lives:
        while taken and taken[0][0] <= life.request.arrival_ps:
            heapq.heappush(free, heapq.heappop(taken)[1])
        lane = heapq.heappop(free) if free else len(taken)
        heapq.heappush(taken, (life.end_ps, lane))
        found.append(lane)
    return found


def _nested(life: Life, lane: int) -> Iterator[Event]:
    place = {"pid": REQUESTS, "tid": lane}
    r = life.request
    arguments = {"prompt_tokens": r.prompt_len, "num_seqs": r.num_seqs}
    if isinstance(r, Request):  # a request that was cut off has no recorded end
        arguments["output_tokens"] = r.output_len
    whole = {"cat": "request", "name": f"request {r.request_id}", **place}
    yield {"ph": "B", "ts": us(r.arrival_ps), "args": arguments, **whole}
    for (name, start_ps), (_, end_ps) in pairwise([*life.begun, ("", life.end_ps)]):
        if end_ps > start_ps:
            yield {"ph": "B", "cat": "phase", "name": name, "ts": us(start_ps), **place}
            yield {"ph": "E", "cat": "phase", "name": name, "ts": us(end_ps), **place}
    yield {"ph": "E", "ts": us(life.end_ps), **whole}


def _iterations(spans: Columns, num_slots: int, start_ps: int, stop_ps: int) -> Iterator[Event]:
    seen = (spans["start_ps"] >= start_ps) & (spans["start_ps"] < stop_ps)
    before = start_ps
    for values in zip(*(spans[name][seen].tolist() for name in COLUMNS), strict=True):
        row = dict(zip(COLUMNS, values, strict=True))
        start, duration = row["start_ps"], row["duration_ps"]
        if start > before:
            yield from _counters(before, num_slots, IDLE)
        kinds = [
            kind
            for kind, count in (("prefill", "prefill_tokens"), ("decode", "decode_seqs"))
            if row[count]
        ]
        times = f" x {row['iterations']}" if row["iterations"] > 1 else ""
        yield {
            "ph": "X",
            "cat": "iteration",
            "name": " + ".join(kinds or ["move"]) + times,
            "ts": us(start),
            "dur": us(duration),
            "pid": ITERATIONS,
            "tid": 0,
            "args": {name: row[name] for name in COUNTS},
        }
        yield from _counters(start, num_slots, row)
        before = start + duration
    yield from _counters(before, num_slots, IDLE)


def _counters(now_ps: int, num_slots: int, row: Mapping[str, float]) -> Iterator[Event]:
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
    """Microseconds."""
    return time_ps / PS_PER_US


def trace_of(
    config: RunConfig, start_s: float = 0.0, stop_s: float | None = None
) -> tuple[dict[str, Any], float]:
    """All events from start_s to stop_s or the end of the run (s), in order of time; when the
    simulation ended (s).
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
    shown = [
        life
        for life in lives
        if life.request.arrival_ps < min(stop_ps, life.end_ps) and life.end_ps > start_ps
    ]
    lanes = _lanes(shown)
    # Lane by lane, so that a request ends before the next on its lane begins at the same time.
    in_lanes = sorted(zip(lanes, shown, strict=True), key=lambda pair: pair[0])
    timed = [event for lane, life in in_lanes for event in _nested(life, lane)]
    for r in (life.request for life in lives if life.request.request_id in recorder.rejections):
        if start_ps <= r.arrival_ps < stop_ps:
            name, arguments = (
                f"request {r.request_id} rejected",
                {"reason": recorder.rejections[r.request_id]},
            )
            place = {"pid": REQUESTS, "tid": 0, "ts": us(r.arrival_ps)}
            timed.append(
                {"ph": "i", "s": "p", "cat": "request", "name": name, **place, "args": arguments}
            )
    timed += _iterations(recorder.spans.columns(), setup.pool.num_slots, start_ps, stop_ps)
    timed.sort(key=lambda event: event["ts"])  # stable: B and E of a lane keep their order
    named: list[tuple[int, int, str, Event]] = []
    for pid, name in PROCESSES.items():
        named += [
            (pid, 0, "process_name", {"name": name}),
            (pid, 0, "process_sort_index", {"sort_index": pid}),
        ]
    named += [
        (REQUESTS, i, "thread_name", {"name": f"lane {i}"})
        for i in range(1 + max(lanes, default=0))
    ]
    named.append((ITERATIONS, 0, "thread_name", {"name": "GPU"}))
    events = [
        *({"ph": "M", "pid": pid, "tid": tid, "name": n, "args": a} for pid, tid, n, a in named),
        *timed,
    ]
    trace = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": dict(setup.description)}
    return trace, recorder.end_ps / PS


def write_trace(path: Path, trace: dict[str, Any]) -> None:
    """Write a trace; a name that ends in .gz is packed, which Perfetto opens too."""
    content = (json.dumps(trace, separators=(",", ":")) + "\n").encode()
    with whole(path) as temporary:
        temporary.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
