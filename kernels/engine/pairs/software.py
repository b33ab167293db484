"""The engine's software time: an iteration's time beyond the GPU's work, by the number of running requests.

It is measured on decodes of equal sequences before any pair runs, so that it is not fitted to the pairs.
"""

import csv
import statistics
from collections.abc import Callable
from pathlib import Path

from testbed.core.request import Request
from testbed.kernels.engine.bench import median_us, served_decodes
from testbed.kernels.engine.gpu_engine import Engine
from testbed.kernels.engine.pairs.plan import Stage
from testbed.kernels.engine.records import write_csv

CONTEXT, NUM_STEPS = 256, 48
FIELDS = ("num_requests", "num_seqs", "iterations", "duration_us", "gpu_us", "host_us", "software_us")


def measure_software(engine: Callable[[], Engine], path: Path, stage: Stage) -> None:
    """Write the median decode iterations of the stage's batches, each served by a fresh engine, as a table."""
    rows = []
    for num_requests, num_seqs in stage.batches:
        requests = [Request(i, 0, CONTEXT, NUM_STEPS + 1, num_seqs) for i in range(num_requests)]
        plain = served_decodes(engine(), requests)
        beyond = statistics.median(one.duration_s - one.gpu_s for one in plain) * 1e6
        times = (*(median_us(plain, name) for name in ("duration_s", "gpu_s", "host_s")), beyond)
        rows.append([num_requests, num_seqs, len(plain), *(round(x, 1) for x in times)])
        print("software", *rows[-1], flush=True)
    write_csv(path, FIELDS, rows)


def read_software(path: Path, num_seqs: int = 1) -> tuple[float, float]:
    """Seconds per iteration and per running request: the line nearest to the points of requests of num_seqs."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if int(row["num_seqs"]) == num_seqs]
    points = [(int(row["num_requests"]), float(row["software_us"]) / 1e6) for row in rows]
    mean_x, mean_y = (statistics.fmean(values) for values in zip(*points, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = max(0.0, sum((x - mean_x) * (y - mean_y) for x, y in points) / spread) if spread else 0.0
    return max(0.0, mean_y - slope * mean_x), slope
