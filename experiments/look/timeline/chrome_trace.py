"""A run in Chrome's "Trace Event Format" (JSON object form), which Perfetto reads too.

Requests are nested B and E events on lanes, iterations are X events, and the pool and the queues
are C events. `ts` and `dur` are microseconds of simulated time; their six decimals are whole
picoseconds. The phases of requests come from the executed plans.
"""

import gzip
import heapq
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from testbed.core.errors import InputError
from testbed.core.request import PS, Incoming, Request
from testbed.engine.recorder import Columns
from testbed.experiments.look.timeline.request_phases import Life, PhaseRecorder
from testbed.experiments.runs.whole_files import whole
from testbed.run.build import Setup, build
from testbed.run.config import RunConfig
from testbed.run.simulate import recorded

REQUESTS, ITERATIONS, POOL = 1, 2, 3
PROCESSES = {REQUESTS: "Requests", ITERATIONS: "Iterations", POOL: "KV pool and queues"}
COUNTS = ("iterations", "decode_seqs", "prefill_tokens", "preempted")
SLOTS, QUEUES = ("live", "reserved", "internal"), ("running", "waiting", "swapped")
COLUMNS = ("start_ps", "duration_ps", *COUNTS, *SLOTS, *QUEUES)
IDLE = dict.fromkeys((*SLOTS, *QUEUES), 0)
PS_PER_US = 10**6
Event = dict[str, Any]


def _lanes(lives: Sequence[Life]) -> list[int]:
    """The lane of each request: the lowest that is free when it begins.

    `lives` are in order of their beginning.
    """
    free_lanes: list[int] = []
    taken: list[tuple[int, int]] = []  # (end_ps, lane)
    lanes = []
    for life in lives:
        while taken and taken[0][0] <= life.start_ps:
            _, freed = heapq.heappop(taken)
            heapq.heappush(free_lanes, freed)
        lane = heapq.heappop(free_lanes) if free_lanes else len(taken)
        heapq.heappush(taken, (life.end_ps, lane))
        lanes.append(lane)
    return lanes


def _request_events(life: Life, lane: int, first_pid: int) -> Iterator[Event]:
    """Begin and end of a request, and of its phases inside it."""
    place = {"pid": first_pid + REQUESTS, "tid": lane}
    request = life.request
    arguments = {"prompt_tokens": request.prompt_len, "num_seqs": request.num_seqs}
    if isinstance(request, Request):  # a request that was cut off has no recorded end
        arguments["output_tokens"] = request.output_len
    common = {"cat": "request", "name": f"request {request.request_id}", **place}
    yield {"ph": "B", "ts": us(life.start_ps), "args": arguments, **common}
    for (name, start_ps), (_, end_ps) in pairwise([*life.begun, ("", life.end_ps)]):
        if end_ps > start_ps:
            yield {"ph": "B", "cat": "phase", "name": name, "ts": us(start_ps), **place}
            yield {"ph": "E", "cat": "phase", "name": name, "ts": us(end_ps), **place}
    yield {"ph": "E", "ts": us(life.end_ps), **common}


def _rejection_event(request: Request | Incoming, reason: str, first_pid: int) -> Event:
    """An instant at which a request was rejected."""
    return {
        "ph": "i",
        "s": "p",
        "cat": "request",
        "name": f"request {request.request_id} rejected",
        "pid": first_pid + REQUESTS,
        "tid": 0,
        "ts": us(request.arrival_ps),
        "args": {"reason": reason},
    }


def _iteration_events(
    spans: Columns, num_slots: int, start_ps: int, stop_ps: int, first_pid: int
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
            yield from _counters(previous_end, num_slots, IDLE, first_pid)
        yield _span_event(span, first_pid)
        yield from _counters(start, num_slots, span, first_pid)
        previous_end = start + span["duration_ps"]
    yield from _counters(previous_end, num_slots, IDLE, first_pid)


def _span_event(span: Mapping[str, int], first_pid: int) -> Event:
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
        "pid": first_pid + ITERATIONS,
        "tid": 0,
        "args": {name: span[name] for name in COUNTS},
    }


def _counters(
    now_ps: int, num_slots: int, row: Mapping[str, float], first_pid: int
) -> Iterator[Event]:
    """The slots by kind and the lengths of the queues, from now on."""
    slots = {name: round(row[name], 3) for name in SLOTS}
    slots["rest"] = round(num_slots - sum(slots.values()), 3)
    for name, values in (("slots", slots), ("requests", {name: row[name] for name in QUEUES})):
        yield {
            "ph": "C",
            "cat": "pool",
            "name": name,
            "ts": us(now_ps),
            "pid": first_pid + POOL,
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
    of time. Each of several engines has processes of its own.
    """
    setup = build(config)
    start_ps, stop_ps, end_ps = setup.part_ps(start_s, stop_s)
    mode = setup.mode._replace(snapshots_ps=(), stop_ps=end_ps)
    recorders = recorded(setup, PhaseRecorder, mode)
    last_ps = max(recorder.end_ps for recorder in recorders)
    if start_ps >= last_ps:
        raise InputError(
            key="--from",
            value=f"{start_s:g}",
            problem=f"the run ends at {last_ps / PS:g} s, there is nothing to show",
        )
    part = start_ps, stop_ps
    if len(recorders) == 1:
        names, timed = _engine_events(setup, recorders[0], *part)
    else:
        names, timed = [], []
        for number, recorder in enumerate(recorders):
            own_names, own = _engine_events(setup, recorder, *part, number)
            names += own_names
            timed += own
    timed.sort(key=lambda event: event["ts"])  # stable: B and E of a lane keep their order
    other = dict(setup.description)
    trace = {"traceEvents": names + timed, "displayTimeUnit": "ms", "otherData": other}
    return trace, last_ps / PS


def _engine_events(
    setup: Setup,
    recorder: PhaseRecorder,
    start_ps: int,
    stop_ps: int,
    engine: int | None = None,
) -> tuple[list[Event], list[Event]]:
    """The names of an engine's processes and threads, and its events; engine: its number, if there
    are several.
    """
    first_pid = 0 if engine is None else len(PROCESSES) * engine
    has_all = engine is None and setup.workload.arrival_ps.any()
    lives = recorder.lives(setup.workload if has_all else ())
    shown = [life for life in lives if life.overlaps(start_ps, stop_ps)]
    lanes = _lanes(shown)
    timed = _lane_events(shown, lanes, first_pid)
    timed += _rejections(lives, recorder.rejections, start_ps, stop_ps, first_pid)
    num_slots, spans = setup.pool_of(engine or 0).num_slots, recorder.spans.columns()
    timed += _iteration_events(spans, num_slots, start_ps, stop_ps, first_pid)
    prefix = "" if engine is None else f"Engine {engine}: "
    return [*_name_events(1 + max(lanes, default=0), first_pid, prefix)], timed


def _lane_events(lives: Sequence[Life], lanes: Sequence[int], first_pid: int) -> list[Event]:
    """The events of all requests, lane by lane.

    So a request ends before the next one on its lane begins, even at the same time.
    """
    in_lanes = sorted(zip(lanes, lives, strict=True), key=lambda pair: pair[0])
    events: list[Event] = []
    for lane, life in in_lanes:
        events += _request_events(life, lane, first_pid)
    return events


def _rejections(
    lives: Sequence[Life], reasons: Mapping[int, str], start_ps: int, stop_ps: int, first_pid: int
) -> Iterator[Event]:
    """The requests rejected in [start_ps, stop_ps); reasons: by request id."""
    for life in lives:
        request = life.request
        if request.request_id in reasons and start_ps <= request.arrival_ps < stop_ps:
            yield _rejection_event(request, reasons[request.request_id], first_pid)


def _name_events(num_lanes: int, first_pid: int, prefix: str) -> Iterator[Event]:
    """The names of the processes and threads, in the order in which they are shown."""
    for process, name in PROCESSES.items():
        pid = first_pid + process
        yield _metadata(pid, 0, "process_name", {"name": prefix + name})
        yield _metadata(pid, 0, "process_sort_index", {"sort_index": pid})
    for lane in range(num_lanes):
        yield _metadata(first_pid + REQUESTS, lane, "thread_name", {"name": f"lane {lane}"})
    yield _metadata(first_pid + ITERATIONS, 0, "thread_name", {"name": "GPU"})


def _metadata(pid: int, tid: int, name: str, arguments: Mapping[str, Any]) -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": name, "args": arguments}


def write_trace(path: Path, trace: dict[str, Any]) -> None:
    """Write a trace as JSON, compressed if the name ends in .gz; Perfetto opens both."""
    content = (json.dumps(trace, separators=(",", ":")) + "\n").encode()
    with whole(path) as temporary:
        temporary.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
