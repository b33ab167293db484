"""How long decode iterations of the whole engine take, beside the sum of their kernels and the bytes that they read.

python -m kernels.engine.measure_decodes --model opt-13b [--batches 1,8,32,128] [--out FOLDER]
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

import torch

from kernels.engine.architecture import Architecture, of_spec
from kernels.engine.assemble import Options, assemble
from kernels.engine.gpu_engine import Engine
from kernels.engine.records import Iteration
from kernels.engine.weights import Weights, random_weights
from kernels.measure.fingerprint import write_measured
from kernels.measure.timing import warm_up
from testbed.core.request import Request
from testbed.core.shapes import read_model
from testbed.core.specs import ModelSpec
from testbed.cost.model import CostModel, Work
from testbed.cost.profile import Choices, ProfileCost, read_profile
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import Recompute

CONTEXT, NUM_STEPS = 512, 64
MEMORY_RATE = 4.36e12  # bytes/s that an H200 has been seen to read
FIELDS = (
    "model", "batch", "iterations", "duration_us", "gpu_us", "host_us", "waited_us", "idle_share", "kernels_us",
    "over_kernels", "bytes_us", "of_bytes",
)  # fmt: skip


def main() -> None:
    """Measure, print a line for each batch size, write a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="opt-13b")
    parser.add_argument("--batches", default="1,8,32,128")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    spec = read_model(options.model)
    arch = of_spec(spec)
    weights, cost = random_weights(arch, 0, "cuda", torch.float16), kernels_alone(spec)
    rows = []
    print(*FIELDS, sep="  ")
    for batch in map(int, options.batches.split(",")):
        rows.append(measure(arch, weights, cost, batch))
        print(*rows[-1].values(), sep="  ", flush=True)
    if options.out:
        write_measured(options.out / f"decodes-{options.model}.csv", FIELDS, rows)


def kernels_alone(spec: ModelSpec) -> CostModel:
    """The sum of the measured kernels of an iteration, without software time."""
    profile = read_profile(f"h200-{spec.name}-tp1")
    return ProfileCost(spec, None, profile, Choices(spread="equal", overhead_s=0.0))


def measure(arch: Architecture, weights: Weights, cost: CostModel, batch: int) -> dict[str, Any]:
    """The median decode iteration of `batch` sequences of about CONTEXT tokens each."""
    engine = make_engine(arch, weights, batch)
    warm_up()
    prompt_len = CONTEXT - NUM_STEPS // 2
    engine.serve(Request(i, 0, prompt_len, NUM_STEPS + 1) for i in range(batch))
    plain = [one for one in engine.records.iterations if one.work.decode_seqs == batch and not one.work.prefill]
    return summary(arch.spec, batch, plain[3:], cost)


def make_engine(arch: Architecture, weights: Weights, batch: int) -> Engine:
    """An engine whose pool holds the whole batch."""
    longest = CONTEXT + NUM_STEPS
    pool = PoolSpec((batch + 1) * longest, longest)
    scheduler = MixedPrefill(Paged(pool), Recompute(), max_num_batched_tokens=8192, max_num_seqs=batch)
    return assemble(scheduler, pool, arch, weights, Options("cuda", torch.float16, graphs=batch))


def summary(spec: ModelSpec, batch: int, plain: list[Iteration], cost: CostModel) -> dict[str, Any]:
    """Medians in microseconds; idle_share is the part of an iteration in which the GPU waits for the host."""
    medians = {
        name: statistics.median(getattr(one, name) for one in plain) * 1e6
        for name in ("duration_s", "gpu_s", "host_s", "waited_s")
    }
    duration, gpu, host, waited = medians.values()
    work = Work(batch, batch * CONTEXT, CONTEXT)
    kernels = cost.iteration(work) / 1e6
    read = spec.linear_params * spec.dtype_bytes + batch * CONTEXT * spec.kv_bytes_per_token
    least = read / MEMORY_RATE * 1e6
    values = (
        spec.name, batch, len(plain), round(duration, 1), round(gpu, 1), round(host, 1), round(waited, 1),
        round(1 - gpu / duration, 4), round(kernels, 1), round(gpu / kernels, 4), round(least, 1),
        round(least / gpu, 4),
    )  # fmt: skip
    return dict(zip(FIELDS, values, strict=True))


if __name__ == "__main__":
    main()
