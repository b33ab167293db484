"""The engine's software time: an iteration's time beyond the GPU's work, by the number of running requests.

It is measured on decodes of equal sequences before any pair runs, so that it is not fitted to the pairs.
"""

import csv
import statistics
from pathlib import Path
from typing import Any

import torch

from testbed.config import EngineConfig
from testbed.kernels.engine.architecture import Architecture
from testbed.kernels.engine.assemble import Options
from testbed.kernels.engine.bench import Bench, median_us
from testbed.kernels.engine.pairs.plan import Stage
from testbed.kernels.engine.records import Iteration
from testbed.kernels.engine.run_folder import write_csv
from testbed.kernels.engine.weights import Weights
from testbed.memory.paged.paged import Paged

CONTEXT, NUM_STEPS = 256, 48
FIELDS = ("num_requests", "iterations", "duration_us", "gpu_us", "host_us", "software_us")


def measure_software(arch: Architecture, weights: Weights, options: EngineConfig, path: Path, stage: Stage) -> None:
    """Write the median decode iterations of the stage's batch sizes as a table."""
    rows = []
    for batch in stage.batches:
        warm = stage.warm if batch == stage.batches[0] else ()
        chosen = Options(options.device, getattr(torch, options.dtype), graphs=options.graphs, warm=warm)
        plain = Bench(arch, weights, chosen).decodes(Paged, [stage.longest or CONTEXT] * batch, NUM_STEPS + 1)
        rows.append(summary(batch, plain))
        print("software", *rows[-1], flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_csv(path, FIELDS, rows)


def summary(batch: int, plain: list[Iteration]) -> list[Any]:
    """Medians in microseconds of the iterations in which the whole batch decodes."""
    times = [median_us(plain, name) for name in ("duration_s", "gpu_s", "host_s")]
    beyond = statistics.median(one.duration_s - one.gpu_s for one in plain) * 1e6
    return [batch, len(plain), *(round(x, 1) for x in (*times, beyond))]


def read_software(path: Path) -> tuple[float, float]:
    """Seconds per iteration and per running request in it: the line nearest to the measured points."""
    with path.open(newline="", encoding="utf-8") as file:
        points = [(int(row["num_requests"]), float(row["software_us"]) / 1e6) for row in csv.DictReader(file)]
    mean_x, mean_y = (statistics.fmean(values) for values in zip(*points, strict=True))
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
    slope = max(0.0, slope)
    return max(0.0, mean_y - slope * mean_x), slope
