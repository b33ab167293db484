"""Time of the whole engine's decode iterations, compared with the sum of their kernels and with the bytes read."""

from argparse import Namespace
from collections.abc import Iterator, Sequence
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
from testbed.kernels.measure.table import Measurement
from testbed.kernels.measure.timing import warm_up
from testbed.memory.paged.paged import Paged

CONTEXT, NUM_STEPS = 512, 64
MEMORY_RATE = 4.36e12  # bytes/s, the highest read rate measured on an H200


def rows(options: Namespace) -> Iterator[Sequence[Any]]:
    """A row for each number of sequences."""
    spec = read_model(options.model)
    arch, cost = of_spec(spec), kernels_alone(spec)
    weights = random_weights(arch, 0, "cuda", torch.float16)
    bench = Bench(arch, weights, Options("cuda", torch.float16, graphs=256), max_num_batched_tokens=8192)
    for batch in map(int, options.batches.split(",")):
        plain = bench.decodes(Paged, [CONTEXT - NUM_STEPS // 2] * batch, NUM_STEPS + 1, warm_up)
        yield summary(spec, batch, plain, cost)


def add_arguments(parser: Parser) -> None:
    """--model and --batches."""
    parser.add_argument("--model", default="opt-13b")
    parser.add_argument("--batches", default="1,8,32,128")


def kernels_alone(spec: ModelSpec) -> CostModel:
    """The sum of the measured kernels of an iteration, without software time."""
    profile = read_profile(f"h200-{spec.name}-tp1")
    return ProfileCost(spec, None, profile, Choices(spread="equal", overhead_s=0.0))


def summary(spec: ModelSpec, batch: int, plain: list[Iteration], cost: CostModel) -> Sequence[Any]:
    """Medians in microseconds; idle_share is the part of an iteration in which the GPU waits for the host."""
    duration, gpu, host, waited = (median_us(plain, name) for name in ("duration_s", "gpu_s", "host_s", "waited_s"))
    kernels = cost.iteration(Work(batch, batch * CONTEXT, CONTEXT)) / 1e6
    read = spec.linear_params * spec.dtype_bytes + batch * CONTEXT * spec.kv_bytes_per_token
    least = read / MEMORY_RATE * 1e6
    shares = 1 - gpu / duration, kernels, gpu / kernels, least, least / gpu
    return spec.name, batch, len(plain), duration, gpu, host, waited, *shares


COLUMNS = """model,batch,iterations,duration_us,gpu_us,host_us,waited_us,idle_share,kernels_us,over_kernels,bytes_us,\
of_bytes"""
MEASUREMENT = Measurement(__doc__, COLUMNS, rows, add_arguments)
