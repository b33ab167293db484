"""The steps of the ladder, each compared with the float64 reference, then timed on the same
batches.

A row has microseconds of one layer's attention: as a captured graph, which is the GPU's part, and
launched from Python.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from testbed.core.errors import InputError
from testbed.kernels.ladder.ladder_steps import STEPS, Attend, LadderBatch
from testbed.kernels.measure.bench_inputs import Calls, Pools, PrefillInputs
from testbed.kernels.measure.sweeps import ragged_lens
from testbed.kernels.measure.timing import Measurement, time_graph, time_stream
from testbed.kernels.verify import reference
from testbed.kernels.verify.reference import Shape, random_batch
from testbed.kernels.verify.verify_attention import TOLERANCE, errors

SHAPE = Shape(32, 8, 128)  # of LLaMA-3-8B, blocks of 16
# Caches that calls rotate over; a graph of the first steps has a node for each token and layer
MAX_LAYERS = 16


class Case(NamedTuple):
    """One random batch: its shape, sequences with several new tokens, sequences with one."""

    shape: Shape
    num_prompts: int
    num_decodes: int
    longest: int = 600


class Load(NamedTuple):
    """A timed batch: new and cached tokens of each sequence, prompts first."""

    name: str
    news: Sequence[int]
    contexts: Sequence[int]
    num_prompts: int = 0


CASES = (
    Case(Shape(14, 2, 64, 16), 3, 5),
    Case(shape=Shape(32, 8, 128, 16), num_prompts=0, num_decodes=6, longest=1500),
    Case(Shape(4, 4, 128, 1, torch.bfloat16), 2, 2),
    Case(Shape(12, 1, 80, 3), 2, 3),
    Case(Shape(8, 2, 256, 256, torch.bfloat16), 1, 4),
    Case(Shape(3, 3, 96, 32), 4, 0),
)
LOADS = (
    Load("1 x 1,024", [1], [1024]),
    Load("8 x 256", [1] * 8, [256] * 8),
    Load("32 x 1,024", [1] * 32, [1024] * 32),
    Load("32 of mean 400", [1] * 32, ragged_lens(32, 400, 2048)),
    Load(
        "28 of mean 400 and 4 prompts of 128",
        [128] * 4 + [1] * 28,
        [128] * 4 + ragged_lens(28, 400, 2048),
        4,
    ),
)


def check(case: Case) -> dict[str, float]:
    """The error of every step on a random batch, with NaN in slots without an owner."""
    rng = np.random.default_rng(0)
    contexts = rng.integers(1, case.longest + 1, case.num_prompts + case.num_decodes).tolist()
    news = [int(rng.integers(1, end + 1)) for end in contexts[: case.num_prompts]] + [
        1
    ] * case.num_decodes
    inputs = random_batch(rng, case.shape, contexts, sum(news))
    batch = LadderBatch(news, contexts, case.num_prompts, inputs.block_tables)
    return step_errors(batch, inputs.q, inputs.k_cache, inputs.v_cache)


def step_errors(
    batch: LadderBatch, q: Tensor, k_cache: Tensor, v_cache: Tensor
) -> dict[str, float]:
    """The largest error of every step, relative to the largest value of its row."""

    def run(step: Attend, out: Tensor) -> None:
        step(out, q, k_cache, v_cache, batch)

    want = reference.paged_prefill(
        q, k_cache, v_cache, batch.block_tables, [*batch.news], [*batch.contexts]
    )
    return errors(q, want, {name: partial(run, step) for name, step in STEPS.items()})


def rows() -> Iterator[Sequence[Any]]:
    """A row for each load and step; raises InputError if a step is wrong."""
    for case in CASES:
        _require(check(case), case.shape, str(case))
    pools = Pools(4 << 30)
    for load in LOADS:
        yield from times(pools, load)
        torch.cuda.empty_cache()


def times(pools: Pools, load: Load) -> Iterator[Sequence[Any]]:
    """The rows of one load."""
    pasts = [end - new for new, end in zip(load.news, load.contexts, strict=True)]
    inputs = PrefillInputs(pools, SHAPE, load.news, pasts)
    batch = LadderBatch(load.news, load.contexts, load.num_prompts, inputs.tables)
    _require(step_errors(batch, inputs.q, inputs.k_cache[0], inputs.v_cache[0]), SHAPE, load.name)
    caches = [*zip(inputs.k_cache, inputs.v_cache, strict=True)][:MAX_LAYERS]
    for name, attend in STEPS.items():
        calls: Calls = [partial(attend, inputs.out, inputs.q, k, v, batch) for k, v in caches]
        graph, stream = time_graph(calls), time_stream(calls[0])
        yield load.name, name, inputs.kv_bytes, *graph, stream.median_us


def _require(errors: dict[str, float], shape: Shape, where: str) -> None:
    for step, error in errors.items():
        if error > TOLERANCE[shape.dtype]:
            raise InputError(
                key=step, problem=f"is wrong on {where} by {error:.1e}: nothing was timed"
            )


MEASUREMENT = Measurement("load,step,kv_bytes,median_us,low_us,high_us,from_python_us", rows)
