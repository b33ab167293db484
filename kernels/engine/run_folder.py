"""A run folder like a simulated run's, with measured times and work of each iteration.

This module needs neither Hydra nor pandas, so that it runs on the GPU's machine.
"""

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.cost.model import WORK_COLUMNS, work_cells
from testbed.kernels.engine.records import Records, SwapTime
from testbed.metrics import Slo, summarize
from testbed.sched.beams import COLUMNS as BEAMS
from testbed.sim.recorder import NOT_YET, request_columns, span_columns

MEASURED = ("gpu_s", "host_s", "wait_s")  # with WORK_COLUMNS what a simulated run's iterations.csv does not have


def write_run(
    folder: Path, records: Records, num_slots: int, window_ps: tuple[int, int] | None, slo: Slo
) -> dict[str, Any]:
    """Write the tables; returns the numbers of the summary."""
    folder.mkdir(parents=True, exist_ok=True)
    records.recorder.settle()
    write_columns(folder / "requests.csv", request_columns(records.recorder))
    rows = [
        (*(f"{x:.7f}" for x in (one.gpu_s, one.host_s, one.waited_s)), *work_cells(one.work))
        for one in records.iterations
    ]
    measured = {name: [row[i] for row in rows] for i, name in enumerate((*MEASURED, *WORK_COLUMNS))}
    write_columns(folder / "iterations.csv", span_columns(records.recorder) | measured)
    if records.beams:
        write_csv(folder / "beams.csv", BEAMS, beam_table(records))
    if records.swaps:
        write_csv(folder / "swaps.csv", SwapTime._fields, records.swaps)
    summary = summarize(records.recorder, num_slots, window_ps, slo)
    write_json(folder / "timing.json", {"wall_s": summary["simulated_s"]})
    return summary


def beam_table(records: Records) -> list[tuple[Any, ...]]:
    """Rows of beams.csv, search by search; a search whose last step replaces no candidate ends with a row for it."""
    widths = {row.request_id: row for row in records.requests if row.num_seqs > 1 and row.finish_ps != NOT_YET}
    last = {(request_id, step) for request_id, step, *_ in records.beams}
    ends = [
        (request_id, row.output_len, "", "")
        for request_id, row in widths.items()
        if row.output_len > 1 and (request_id, row.output_len) not in last
    ]
    return sorted([*records.beams, *ends], key=lambda line: line[:2])


def write_columns(path: Path, columns: Mapping[str, Any]) -> None:
    """Write columns, arrays or lists; NaN, of an event that did not occur, is an empty cell."""
    cells = [column.tolist() if hasattr(column, "tolist") else column for column in columns.values()]
    write_csv(path, [*columns], (["" if x != x else x for x in row] for row in zip(*cells, strict=True)))


def write_csv(path: Path, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a table."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(rows)


def write_json(path: Path, value: Any) -> None:
    """A JSON file."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
