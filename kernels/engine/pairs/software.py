"""The engine's own software time: what an iteration takes beyond the GPU's work, by resident requests.

It is measured on decodes of equal sequences before any pair runs, so that nothing of a pair is fitted to it.
"""

import csv
import statistics
from pathlib import Path
from typing import Any

from kernels.engine.architecture import Architecture
from kernels.engine.assemble import Options, assemble
from kernels.engine.config import DTYPES
from kernels.engine.pairs.memory import free, undisturbed
from kernels.engine.pairs.plan import Stage
from kernels.engine.records import Iteration
from kernels.engine.run_folder import write_csv
from kernels.engine.weights import Weights
from testbed.core.request import Request
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import Recompute

CONTEXT = 256
NUM_STEPS, SETTLING = 48, 4
FIELDS = ("num_requests", "iterations", "duration_us", "gpu_us", "host_us", "software_us")


def measure_software(arch: Architecture, weights: Weights, options: dict[str, Any], path: Path, stage: Stage) -> None:
    """Median decode iterations of the stage's batch sizes, as a table."""
    context = stage.longest or CONTEXT
    longest = context + NUM_STEPS + 1
    rows = []
    for batch in stage.batches:
        pool, warm = PoolSpec((batch + 1) * longest, longest), stage.warm if batch == stage.batches[0] else ()
        scheduler = MixedPrefill(Paged(pool), Recompute(), max_num_batched_tokens=2560, max_num_seqs=batch)
        graphs = min(batch, options["graphs"])
        chosen = Options(options["device"], DTYPES[options["dtype"]], graphs=graphs, warm=warm)
        engine = assemble(scheduler, pool, arch, weights, chosen)
        with undisturbed():
            engine.serve(Request(i, 0, context, NUM_STEPS + 1) for i in range(batch))
        rows.append(summary(batch, engine.records.iterations))
        print("software", *rows[-1], flush=True)
        del engine, scheduler
        free()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_csv(path, FIELDS, rows)


def summary(batch: int, iterations: list[Iteration]) -> list[Any]:
    """Medians in microseconds of the iterations in which the whole batch decodes."""
    plain = [one for one in iterations if one.work.decode_seqs == batch and not one.work.prefill][SETTLING:]
    gpu, duration, host = (
        statistics.median(getattr(one, name) for one in plain) * 1e6 for name in ("gpu_s", "duration_s", "host_s")
    )
    beyond = statistics.median(one.duration_s - one.gpu_s for one in plain) * 1e6
    return [batch, len(plain), *(round(x, 1) for x in (duration, gpu, host, beyond))]


def read_software(path: Path) -> tuple[float, float]:
    """Seconds of an iteration and of each resident request in it: the line nearest to the measured points."""
    with path.open(newline="", encoding="utf-8") as file:
        points = [(int(row["num_requests"]), float(row["software_us"]) / 1e6) for row in csv.DictReader(file)]
    mean_x, mean_y = (statistics.fmean(values) for values in zip(*points, strict=True))
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
    slope = max(0.0, slope)
    return max(0.0, mean_y - slope * mean_x), slope
