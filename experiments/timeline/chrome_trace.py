"""The Chrome trace event format ("Trace Event Format", JSON object form), which Perfetto reads too.

Requests are nested B and E events on lanes, iterations X events, the pool and the queues C events. `ts` and `dur` are
in microseconds of simulated time, six decimals of which are whole picoseconds.
"""

import gzip
import heapq
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.build import build
from testbed.config import RunConfig
from testbed.core.errors import InputError
from testbed.core.request import PS, Request
from testbed.experiments.runs.whole_files import write_text, write_with
from testbed.experiments.timeline.phases import Life, PhaseRecorder
from testbed.sim.recorder import Columns
from testbed.sim.simulation import simulate

REQUESTS, ITERATIONS, POOL = 1, 2, 3
PROCESSES = {REQUESTS: "Requests", ITERATIONS: "Iterations", POOL: "KV pool and queues"}
COUNTS = ("iterations", "decode_seqs", "prefill_tokens", "preempted")
SLOTS, QUEUES = ("live", "reserved", "internal"), ("running", "waiting", "swapped")
COLUMNS = ("start_ps", "duration_ps", *COUNTS, *SLOTS, *QUEUES)
IDLE = dict.fromkeys((*SLOTS, *QUEUES), 0)
PS_PER_US = 10**6
Event = dict[str, Any]


def chrome_trace(
    lives: Sequence[Life], spans: Columns, num_slots: int, what: Mapping[str, Any], start_ps: int, stop_ps: int
) -> dict[str, Any]:
    """The content of the file: all events in [start_ps, stop_ps), in order of time."""
    shown = [life for life in lives if life.phases and _overlaps(life, start_ps, stop_ps)]
    lanes = _lanes(shown)
    # Lane by lane, so that a request ends before the next on its lane begins at the same time.
    in_lanes = sorted(zip(lanes, shown, strict=True), key=lambda pair: pair[0])
    timed = [event for lane, life in in_lanes for event in _nested(life, lane)]
    timed += _rejections(lives, start_ps, stop_ps)
    timed += _iterations(spans, num_slots, start_ps, stop_ps)
    timed.sort(key=lambda event: event["ts"])  # stable: B and E of a lane keep their order
    return {
        "traceEvents": [*_names(1 + max(lanes, default=0)), *timed], "displayTimeUnit": "ms", "otherData": dict(what),
    }  # fmt: skip


def _overlaps(life: Life, start_ps: int, stop_ps: int) -> bool:
    return life.phases[0].start_ps < stop_ps and life.phases[-1].end_ps > start_ps


def _names(num_lanes: int) -> Iterator[Event]:
    for pid, name in PROCESSES.items():
        yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": name}}
        yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_sort_index", "args": {"sort_index": pid}}
    for lane in range(num_lanes):
        yield {"ph": "M", "pid": REQUESTS, "tid": lane, "name": "thread_name", "args": {"name": f"lane {lane}"}}
    yield {"ph": "M", "pid": ITERATIONS, "tid": 0, "name": "thread_name", "args": {"name": "GPU"}}


def _lanes(lives: Sequence[Life]) -> list[int]:
    """The lane of each request, the lowest that is free at its arrival; `lives` are in order of arrival."""
    free: list[int] = []
    taken: list[tuple[int, int]] = []
    found = []
    for life in lives:
        while taken and taken[0][0] <= life.request.arrival_ps:
            heapq.heappush(free, heapq.heappop(taken)[1])
        lane = heapq.heappop(free) if free else len(taken)
        heapq.heappush(taken, (life.phases[-1].end_ps, lane))
        found.append(lane)
    return found


def _nested(life: Life, lane: int) -> Iterator[Event]:
    place = {"pid": REQUESTS, "tid": lane}
    r = life.request
    arguments = {"prompt_tokens": r.prompt_len, "num_seqs": r.num_seqs}
    if isinstance(r, Request):  # a request that was cut off has no recorded end
        arguments["output_tokens"] = r.output_len
    whole = {"cat": "request", "name": f"request {r.request_id}", **place}
    yield {"ph": "B", "ts": us(life.phases[0].start_ps), "args": arguments, **whole}
    for phase in life.phases:
        yield {"ph": "B", "cat": "phase", "name": phase.name, "ts": us(phase.start_ps), **place}
        yield {"ph": "E", "cat": "phase", "name": phase.name, "ts": us(phase.end_ps), **place}
    yield {"ph": "E", "ts": us(life.phases[-1].end_ps), **whole}


def _rejections(lives: Sequence[Life], start_ps: int, stop_ps: int) -> Iterator[Event]:
    for life in lives:
        if life.rejected and start_ps <= life.request.arrival_ps < stop_ps:
            name, arguments = f"request {life.request.request_id} rejected", {"reason": life.rejected}
            place = {"pid": REQUESTS, "tid": 0, "ts": us(life.request.arrival_ps)}
            yield {"ph": "i", "s": "p", "cat": "request", "name": name, **place, "args": arguments}


def _iterations(spans: Columns, num_slots: int, start_ps: int, stop_ps: int) -> Iterator[Event]:
    seen = (spans["start_ps"] >= start_ps) & (spans["start_ps"] < stop_ps)
    before = start_ps
    for values in zip(*(spans[name][seen].tolist() for name in COLUMNS), strict=True):
        row = dict(zip(COLUMNS, values, strict=True))
        start, duration = row["start_ps"], row["duration_ps"]
        if start > before:
            yield from _counters(before, num_slots, IDLE)
        kinds = [kind for kind, count in (("prefill", "prefill_tokens"), ("decode", "decode_seqs")) if row[count]]
        times = f" x {row['iterations']}" if row["iterations"] > 1 else ""
        yield {
            "ph": "X", "cat": "iteration", "name": " + ".join(kinds or ["move"]) + times, "ts": us(start),
            "dur": us(duration), "pid": ITERATIONS, "tid": 0, "args": {name: row[name] for name in COUNTS},
        }  # fmt: skip
        yield from _counters(start, num_slots, row)
        before = start + duration
    yield from _counters(before, num_slots, IDLE)


def _counters(now_ps: int, num_slots: int, row: Mapping[str, float]) -> Iterator[Event]:
    slots = {name: round(row[name], 3) for name in SLOTS}
    slots["rest"] = round(num_slots - sum(slots.values()), 3)
    for name, values in (("slots", slots), ("requests", {name: row[name] for name in QUEUES})):
        yield {"ph": "C", "cat": "pool", "name": name, "ts": us(now_ps), "pid": POOL, "tid": 0, "args": values}


def us(time_ps: int) -> float:
    """Microseconds."""
    return time_ps / PS_PER_US


def trace_of(config: RunConfig, start_s: float = 0.0, stop_s: float | None = None) -> tuple[dict[str, Any], float]:
    """The trace from start_s to stop_s or the end of the run (s), and when the simulation ended (s)."""
    setup, recorder = build(config), PhaseRecorder()
    start_ps, stop_ps, end_ps = setup.part_ps(start_s, stop_s)
    simulate(
        setup.workload, setup.scheduler, setup.cost, setup.model.max_len, stop_ps=end_ps,
        recorder=recorder, fast_forward=setup.config.fast_forward, beams=setup.beams,
    )  # fmt: skip
    if start_ps >= recorder.end_ps:
        raise InputError(f"--from {start_s:g}: the run ends at {recorder.end_ps / PS:g} s, there is nothing to show")
    lives, spans = recorder.lives(setup.workload), recorder.spans.columns()
    what = (setup.pool.num_slots, setup.description, start_ps, stop_ps)
    return chrome_trace(lives, spans, *what), recorder.end_ps / PS


def write_trace(path: Path, trace: dict[str, Any]) -> None:
    """Write a trace; a name that ends in .gz is packed, which Perfetto opens too."""
    text = json.dumps(trace, separators=(",", ":")) + "\n"
    if path.suffix == ".gz":
        write_with(path, lambda temporary: temporary.write_bytes(gzip.compress(text.encode(), mtime=0)))
    else:
        write_text(path, text)
