"""What a run leaves behind, as raw rows: one an iteration, one a request, one a change of beams."""

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from testbed.core.request import PS, Request
from testbed.core.sequence import SequenceGroup
from testbed.core.slots import Usage
from testbed.cost.model import Work

NOT_YET = -1


class Iteration(NamedTuple):
    """One iteration. Times in seconds: host_s planning, launching and committing, waited_s for the GPU, gpu_s on it.

    Host and GPU work at the same time, so that host_s + waited_s, not their sum with gpu_s, is the whole.
    """

    start_s: float
    duration_s: float
    host_s: float
    waited_s: float
    gpu_s: float
    waiting: int
    swapped: int
    running: int
    preempted: int
    usage: Usage
    work: Work


class RequestRow(NamedTuple):
    """One request that has ended; the columns of a simulated run's requests."""

    request_id: int
    arrival_ps: int
    first_token_ps: int
    finish_ps: int
    prompt_len: int
    output_len: int
    num_seqs: int
    num_swaps: int
    num_recomputes: int


@dataclass(slots=True)
class Records:
    """All rows of a run; `outputs` the generated tokens of each finished request by sequence."""

    iterations: list[Iteration] = field(default_factory=list)
    requests: list[RequestRow] = field(default_factory=list)
    rejections: dict[int, str] = field(default_factory=dict)
    outputs: dict[int, list[list[int]]] = field(default_factory=dict)
    beams: list[tuple[int, int, int, int]] = field(default_factory=list)
    _first_s: dict[int, float] = field(default_factory=dict)

    def first_token(self, request_id: int, now_s: float) -> None:
        """The request has output from now on; after recompute that is nothing new."""
        self._first_s.setdefault(request_id, now_s)

    def served(self, request: Request, group: SequenceGroup, now_s: float, outputs: list[list[int]]) -> None:
        """The request was answered."""
        r = request
        times = r.arrival_ps, round(self._first_s.pop(r.request_id) * PS), round(now_s * PS)
        counts = r.num_seqs, group.num_swaps, group.num_recomputes
        self.requests.append(RequestRow(r.request_id, *times, r.prompt_len, r.output_len, *counts))
        self.outputs[r.request_id] = outputs

    def rejected(self, request: Request, reason: str) -> None:
        """The request was turned away."""
        r = request
        self.rejections[r.request_id] = reason
        times = r.arrival_ps, NOT_YET, NOT_YET
        self.requests.append(RequestRow(r.request_id, *times, r.prompt_len, r.output_len, r.num_seqs, 0, 0))

    def write(self, folder: Path, about: dict[str, Any]) -> None:
        """iterations.csv, requests.csv, beams.csv and run.json in a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        names = (*Iteration._fields[:-2], *Usage._fields, "work")
        rows = [(*one[:-2], *one.usage, json.dumps(one.work, separators=(",", ":"))) for one in self.iterations]
        _write_csv(folder / "iterations.csv", names, rows)
        _write_csv(folder / "requests.csv", RequestRow._fields, self.requests)
        _write_csv(folder / "beams.csv", ("request_id", "step", "parent", "child"), self.beams)
        text = json.dumps(about | {"rejections": self.rejections}, indent=1)
        (folder / "run.json").write_text(text, encoding="utf-8")


def _write_csv(path: Path, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        for row in rows:
            writer.writerow([f"{x:.7f}" if isinstance(x, float) else x for x in row])
