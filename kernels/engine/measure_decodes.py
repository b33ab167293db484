"""Time of the whole engine's decode iterations, compared with the sum of their kernels and with the bytes read."""

from pathlib import Path
from typing import Any

import torch

from testbed.command_line import Parser
from testbed.core.shapes import read_model
from testbed.core.specs import ModelSpec
from testbed.cost.model import CostModel, Work
from testbed.cost.profile import Choices, ProfileCost, read_profile
from testbed.kernels.engine.architecture import of_spec
from testbed.kernels.engine.assemble import Options
from testbed.kernels.engine.bench import Bench, median_us
from testbed.kernels.engine.records import Iteration
from testbed.kernels.engine.weights import random_weights
from testbed.kernels.measure.fingerprint import fingerprint, in_short, write_rows
from testbed.kernels.measure.timing import warm_up
from testbed.memory.paged.paged import Paged

CONTEXT, NUM_STEPS = 512, 64
MEMORY_RATE = 4.36e12  # bytes/s, the highest read rate measured on an H200


def main(argv: list[str]) -> None:
    """Measure, print a line per batch size, write a table."""
    parser = Parser("measure decodes", __doc__)
    parser.add_argument("--model", default="opt-13b")
    parser.add_argument("--batches", default="1,8,32,128")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    spec = read_model(options.model)
    arch, cost = of_spec(spec), kernels_alone(spec)
    weights = random_weights(arch, 0, "cuda", torch.float16)
    bench = Bench(arch, weights, Options("cuda", torch.float16, graphs=256), max_num_batched_tokens=8192)
    rows: list[dict[str, Any]] = []
    for batch in map(int, options.batches.split(",")):
        plain = bench.decodes(Paged, [CONTEXT - NUM_STEPS // 2] * batch, NUM_STEPS + 1, warm_up)
        rows.append(summary(spec, batch, plain, cost))
        if len(rows) == 1:
            print(*rows[0], sep="  ")
        print(*rows[-1].values(), sep="  ", flush=True)
    if options.out:
        write_rows(options.out / f"decodes-{options.model}.csv", rows, in_short(fingerprint()))


def kernels_alone(spec: ModelSpec) -> CostModel:
    """The sum of the measured kernels of an iteration, without software time."""
    profile = read_profile(f"h200-{spec.name}-tp1")
    return ProfileCost(spec, None, profile, Choices(spread="equal", overhead_s=0.0))


def summary(spec: ModelSpec, batch: int, plain: list[Iteration], cost: CostModel) -> dict[str, Any]:
    """Medians in microseconds; idle_share is the part of an iteration in which the GPU waits for the host."""
    duration, gpu, host, waited = (median_us(plain, name) for name in ("duration_s", "gpu_s", "host_s", "waited_s"))
    kernels = cost.iteration(Work(batch, batch * CONTEXT, CONTEXT)) / 1e6
    read = spec.linear_params * spec.dtype_bytes + batch * CONTEXT * spec.kv_bytes_per_token
    least = read / MEMORY_RATE * 1e6
    times = {"duration_us": duration, "gpu_us": gpu, "host_us": host, "waited_us": waited}
    return {
        "model": spec.name, "batch": batch, "iterations": len(plain),
        **{name: round(time, 1) for name, time in times.items()}, "idle_share": round(1 - gpu / duration, 4),
        "kernels_us": round(kernels, 1), "over_kernels": round(gpu / kernels, 4), "bytes_us": round(least, 1),
        "of_bytes": round(least / gpu, 4),
    }  # fmt: skip
