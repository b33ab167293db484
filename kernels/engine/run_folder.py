"""A run folder as a simulated run leaves one, with measured times and work beside each iteration.

It needs neither Hydra nor pandas, so that it can be written where the GPU is.
"""

import csv
import gzip
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any, cast

from kernels.engine.records import Records
from testbed.core.request import PS
from testbed.cost.work_table import WORK_COLUMNS, work_cells
from testbed.metrics import summarize
from testbed.sched.recorded_beams import COLUMNS as BEAMS
from testbed.sim.columns import request_columns
from testbed.sim.recorder import NOT_YET, SHAPE, SLOTS

MEASURED = ("gpu_s", "host_s", "wait_s")
SUMMARY = "summary.json"


def write_run(
    folder: Path, records: Records, num_slots: int, window_ps: tuple[int, int] | None, about: dict[str, Any],
    config: dict[str, Any], packed: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Write all files, summary.json last; `packed` gzips the tables. Returns the summary.

    about: `engine` and what else the summary says that no recorder knows. The config is written as JSON, which is YAML.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SUMMARY).unlink(missing_ok=True)
    suffix = ".csv.gz" if packed else ".csv"
    (folder / "config.yaml").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    write_csv(folder / f"requests{suffix}", *request_table(records))
    write_csv(folder / f"iterations{suffix}", *iteration_table(records))
    if records.beams:
        write_csv(folder / "beams.csv", BEAMS, beam_table(records))
    summary = summarize(records.recorder, num_slots, window_ps) | about
    write_json(folder / "timing.json", {"wall_s": summary["simulated_s"]})
    write_json(folder / SUMMARY, summary)
    return summary


def request_table(records: Records) -> tuple[list[str], Iterable[Sequence[Any]]]:
    """Names and rows of requests.csv, in order of arrival; what has not happened is empty."""
    columns = request_columns(records.recorder)
    return [*columns], zip(*(map(_known, column.tolist()) for column in columns.values()), strict=True)


def _known(value: Any) -> Any:
    """NaN, what has not happened, as an empty cell."""
    return "" if value != value else value


def iteration_table(records: Records) -> tuple[list[str], list[list[Any]]]:
    """Names and rows of iterations.csv: a simulated run's columns, MEASURED, WORK_COLUMNS."""
    fields = (*SHAPE, "running", *SLOTS)
    records.recorder.settle()
    columns = records.recorder.spans.columns()
    spans = zip(*(columns[name].tolist() for name in fields), strict=True)
    rows = [
        [*map(_cell, fields, span), *_times(one.gpu_s, one.host_s, one.waited_s), *work_cells(one.work)]
        for span, one in zip(spans, records.iterations, strict=True)
    ]
    return [*map(_seconds_name, fields), *MEASURED, *WORK_COLUMNS], rows


def beam_table(records: Records) -> list[tuple[Any, ...]]:
    """Rows of beams.csv, a search after another; where nobody is replaced at a search's last step, a line says so."""
    widths = {row.request_id: row for row in records.requests if row.num_seqs > 1 and row.finish_ps != NOT_YET}
    last = {(request_id, step) for request_id, step, *_ in records.beams}
    ends = [
        (request_id, row.output_len, "", "")
        for request_id, row in widths.items()
        if row.output_len > 1 and (request_id, row.output_len) not in last
    ]
    return sorted([*records.beams, *ends], key=lambda line: line[:2])


def write_csv(path: Path, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table; gzipped where the name ends so, and then the same bytes every time."""
    with path.open("wb") as raw:
        if path.suffix == ".gz":
            with gzip.GzipFile("", "wb", mtime=0, fileobj=raw) as packed:
                _write(cast(IO[bytes], packed), names, rows)
        else:
            _write(raw, names, rows)


def write_json(path: Path, value: Any) -> None:
    """A JSON file."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _write(file: IO[bytes], names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)
    text.flush()
    text.detach()


def _times(*seconds: float) -> list[str]:
    return [f"{x:.7f}" for x in seconds]


def _seconds_name(name: str) -> str:
    return f"{name[:-3]}_s" if name.endswith("_ps") else name


def _cell(name: str, value: Any) -> Any:
    if not name.endswith("_ps"):
        return int(value) if isinstance(value, float) and value.is_integer() else value
    return "" if value == NOT_YET else value / PS
