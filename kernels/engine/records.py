"""The timer and the records of a run: the simulator's recorder, each iteration's measured times
and work, its folder.

This module needs neither Hydra nor pandas, so that it runs on the GPU's machine.
"""

import csv
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from testbed.core.request import Column
from testbed.cost.model import WORK_COLUMNS, Work, work_cells
from testbed.engine.recorder import NOT_YET, Recorder, request_columns, span_columns
from testbed.run.config import Slo
from testbed.run.metrics import summarize
from testbed.sched.beam_search import COLUMNS as BEAMS

MEASURED = (
    "gpu_s",
    "host_s",
    "wait_s",
    "launch_s",
)  # with WORK_COLUMNS what a simulated run's iterations.csv does not have


class DeviceTime:
    """The device's time for one launch, by its own clock; none without a GPU."""

    def __init__(self, on_gpu: bool = False) -> None:
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if on_gpu else []
        self._is_begun = False

    def begin(self) -> None:
        """Called before the device's first work; only the first call counts."""
        if self._events and not self._is_begun:
            self._is_begun = True
            self._events[0].record()

    def end(self) -> None:
        """All work of the launch has been handed to the device."""
        if self._events:
            self._events[1].record()

    def wait(self) -> None:
        """Return when the device has done the work."""
        if self._events:
            self._events[1].synchronize()

    @property
    def seconds(self) -> float:
        """The seconds from the first work to the last, which is done."""
        if not self._is_begun:
            return 0.0
        return float(self._events[0].elapsed_time(self._events[1])) / 1e3


class Timer:
    """The time that an iteration waits for the device; and the device's time for what is being
    launched. guard: a context around each wait.
    """

    def __init__(
        self, on_gpu: bool = False, guard: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        self._on_gpu = on_gpu
        self._guard = guard
        self._launch = DeviceTime()
        self._waited_s = 0.0

    def launch(self) -> DeviceTime:
        """Called before a launch, whose time on the device this is."""
        self._launch = DeviceTime(self._on_gpu)
        return self._launch

    def launched(self) -> None:
        """Called before each work of the launch that may be its first."""
        self._launch.begin()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The host waits for the device's results."""
        start = time.perf_counter()
        with self._guard():
            yield
        self._waited_s += time.perf_counter() - start

    def take_waited(self) -> float:
        """Seconds of waiting since the last call, or the start."""
        waited_s, self._waited_s = self._waited_s, 0.0
        return waited_s


class Iteration(NamedTuple):
    """One iteration. Seconds: host_s of planning, launching, committing; waited_s for the GPU;
    gpu_s of GPU work; launch_s from when the host reads the results of the one before until it has
    launched all of this one.

    An iteration begins when the one before has ended, so that its host_s has what is recorded of
    that one. Host and GPU work in parallel: the duration is host_s + waited_s, without gpu_s. If
    the next iteration is launched before this one has ended, host_s is of that launch.
    """

    start_s: float
    duration_s: float
    host_s: float
    waited_s: float
    gpu_s: float
    work: Work
    launch_s: float = 0.0


class SwapTime(NamedTuple):
    """One swap (way out, in) or transfer in the background (store, load).

    num_extents: planes of blocks; seconds: from its first to its last work.
    """

    way: str
    num_extents: int
    num_bytes: int
    seconds: float


@dataclass(slots=True)
class Records:
    """All rows of a run; `outputs`: generated tokens of each finished request by sequence;
    `scores`: the log-probability of each sequence of a finished beam.

    Row i of `iterations` belongs to the recorder's span i, which is always one iteration.
    """

    recorder: Recorder = field(default_factory=Recorder)
    iterations: list[Iteration] = field(default_factory=list)
    outputs: dict[int, list[list[int]]] = field(default_factory=dict)
    scores: dict[int, list[float]] = field(default_factory=dict)
    beams: list[tuple[int, int, int, int]] = field(default_factory=list)
    swaps: list[SwapTime] = field(default_factory=list)


def write_run(
    folder: Path,
    records: Records,
    num_slots: int,
    window_ps: tuple[int, int] | None,
    slo: Slo,
    sessions: Column | None = None,
) -> dict[str, Any]:
    """Write requests.csv, iterations.csv, timing.json and, if there are any, beams.csv and
    swaps.csv into the folder; returns the numbers of the summary. window_ps: the window of
    averages, from and to; None: the whole run. num_slots: of the pool. sessions: as in
    `summarize`.
    """
    write_columns(folder / "requests.csv", request_columns(records.recorder))
    times = [
        [f"{x:.7f}" for x in (it.gpu_s, it.host_s, it.waited_s, it.launch_s)]
        for it in records.iterations
    ]
    rows = [
        (*row, *work_cells(iteration.work))
        for row, iteration in zip(times, records.iterations, strict=True)
    ]
    measured = {name: [row[i] for row in rows] for i, name in enumerate((*MEASURED, *WORK_COLUMNS))}
    write_columns(folder / "iterations.csv", span_columns(records.recorder) | measured)
    if records.beams:
        write_csv(folder / "beams.csv", BEAMS, beam_table(records))
    if records.swaps:
        write_csv(folder / "swaps.csv", SwapTime._fields, records.swaps)
    summary = summarize(records.recorder, num_slots, window_ps, slo, sessions)
    write_json(folder / "timing.json", {"wall_s": summary["simulated_s"]})
    return summary


def beam_table(records: Records) -> list[tuple[Any, ...]]:
    """Rows of beams.csv, search by search; a search whose last step replaces no candidate ends with
    a row for it.
    """
    columns = records.recorder.requests.columns()
    searched = (
        (columns["num_seqs"] > 1) & (columns["output_len"] > 1) & (columns["finish_ps"] != NOT_YET)
    )
    ends = zip(
        *(columns[name][searched].tolist() for name in ("request_id", "output_len")), strict=True
    )
    last = set(ends) - {(line[0], line[1]) for line in records.beams}
    return sorted([*records.beams, *((*end, "", "") for end in last)], key=lambda line: line[:2])


def write_columns(path: Path, columns: Mapping[str, Any]) -> None:
    """Write columns, arrays or lists; NaN, of an event that did not occur, is an empty cell."""
    cells = [
        column.tolist() if hasattr(column, "tolist") else column for column in columns.values()
    ]
    write_csv(
        path, [*columns], (["" if x != x else x for x in row] for row in zip(*cells, strict=True))
    )


def write_csv(
    path: Path, names: Iterable[str], rows: Iterable[Iterable[Any]], about: str = ""
) -> None:
    """Write a table; a first line has the device and date of a measurement, if any."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(f"# {about}\n" if about else "")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(rows)


def write_json(path: Path, value: Any) -> None:
    """A JSON file."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
