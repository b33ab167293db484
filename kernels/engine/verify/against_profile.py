"""The engine on random batches beside what a profile says of them.

A batch is a number of sequences that no section of the profile was measured at, and prompts of
ragged lengths. Their prompts are computed in iterations with decodes, then all decode together.
Iterations are planned ahead and their time is taken as in the calibration: of decodes from result
to result, with prompts as the GPU has it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from testbed.core.request import Request
from testbed.core.slots import ceil_div
from testbed.core.specs import ModelSpec, ServerSpec
from testbed.cost.model import CostModel
from testbed.cost.profile import Choices, ProfileCost, read_profile
from testbed.cost.sections import rows
from testbed.kernels.engine.architecture import of_spec
from testbed.kernels.engine.calibrate_engine import OPTIONS, lasting, on_gpu
from testbed.kernels.engine.engine_iterations import SETTLING, decodes_of
from testbed.kernels.engine.loaded_model import (
    BLOCK,
    MOST_TOKENS,
    Bench,
    ahead,
)
from testbed.kernels.engine.parallel.processes import start
from testbed.kernels.engine.parallel.worker import Source
from testbed.kernels.engine.phases import Phase, in_phases
from testbed.kernels.engine.random_weights import random_weights
from testbed.kernels.engine.records import Iteration
from testbed.kernels.engine.served_run import assemble
from testbed.kernels.measure.all_reduce import NO_DATA_SHEET
from testbed.kernels.measure.profile_sections import check_device
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec

MAX_SEQS, MAX_CONTEXT, MAX_STORED = 128, 1800, 40_000  # sequences, tokens of one, tokens of all
STEPS = 16  # decodes that are compared
LIMIT = 0.05


class Batch(NamedTuple):
    """Requests that arrive together; prompt_lens: in tokens."""

    prompt_lens: tuple[int, ...]

    @property
    def output_len(self) -> int:
        """Enough for all to decode together, when the last prompt has been computed."""
        return 2 * ceil_div(sum(self.prompt_lens), MOST_TOKENS - MAX_SEQS) + 2 + SETTLING + STEPS


class Compared(NamedTuple):
    """One batch of decodes (medians over its iterations), or one iteration with prompts: sequences
    that decode, their tokens, tokens of prompts, and microseconds.
    """

    batch: int
    decode_seqs: int
    decode_context: int
    prompt_tokens: int
    measured_us: float
    predicted_us: float


def verify_profile(path: Path, num_batches: int, seed: int, out: Path | None) -> bool:
    """Serve random batches and compare; prints the errors, writes the rows to `out`, and returns
    whether the mean time of decodes and that of iterations with prompts are within LIMIT.
    """
    profile = read_profile(path)
    spec, num_gpus = ModelSpec(**profile["model"]), int(profile["num_gpus"])
    check_device(profile, str(path))
    batches = drawn(num_batches, taken(profile), spec.max_len, np.random.default_rng(seed))
    server = ServerSpec("measured", NO_DATA_SHEET, num_gpus) if num_gpus > 1 else None
    choices = Choices(kernel="paged", spread="ragged")
    cost = ProfileCost(spec, server, profile, choices)
    with bench_of(spec, num_gpus) as bench:
        compared = compare(bench, batches, cost)
    frame = pd.DataFrame(compared)
    if out is not None:
        frame.to_csv(out, index=False)
    decodes = frame[frame.prompt_tokens == 0]
    parts = {"decodes": decodes, "iterations with prompts": frame.drop(decodes.index)}
    return all([_within_limit(name, part) for name, part in parts.items()])


def taken(profile: Mapping[str, Any]) -> set[int]:
    """The numbers of sequences at which the profile has points of decodes."""
    place_of = {"launched_graph": 1, "launch_decodes": 1, "decode_attention": 0}
    points = [
        (key, place)
        for name, place in place_of.items()
        if name in profile["sections"]
        for key, _ in rows(profile, name)
    ]
    return {key[place] for key, place in points if isinstance(key[place], int)}


def drawn(
    num_batches: int, excluded: set[int], max_len: int, rng: np.random.Generator
) -> list[Batch]:
    """Batches one after the other: a number of sequences that is not excluded, evenly over its
    logarithm, a mean length, and lengths around it.
    """
    sizes = np.array([n for n in range(2, MAX_SEQS) if n not in excluded])
    batches = list[Batch]()
    for _ in range(num_batches):
        size = rng.choice(sizes, p=(1 / sizes) / (1 / sizes).sum())
        mean = rng.uniform(48, min(0.5 * MAX_CONTEXT, MAX_STORED / size))
        longest = min(MAX_CONTEXT, max_len - 200)
        lengths = np.clip(rng.gamma(2.0, mean / 2, size), 8, longest).astype(int)
        batches.append(Batch(tuple(lengths.tolist())))
    return batches


@contextmanager
def bench_of(spec: ModelSpec, num_gpus: int) -> Iterator[Bench]:
    """A model with random weights on num_gpus GPUs."""
    arch = of_spec(spec)
    if num_gpus == 1:
        yield Bench(arch, random_weights(arch, 0, "cuda", torch.float16), OPTIONS)
        return
    ranks = start(Source(arch), num_gpus)
    with closing(ranks.lead):
        yield Bench(ranks.arch, ranks.weights, OPTIONS, ranks.lead)


def compare(bench: Bench, batches: Sequence[Batch], cost: CostModel) -> list[Compared]:
    """The rows of all batches: iterations with prompts, then decodes."""
    prompts, decodes = list[Compared](), list[Compared]()
    for number, iterations in enumerate(served(bench, batches)):
        with_prompts = [it for it in iterations if it.work.prefill]
        prompts += [_compared(number, [iteration], cost) for iteration in with_prompts]
        together = decodes_of(len(batches[number].prompt_lens), iterations)
        decodes.append(_compared(number, together, cost))
    return prompts + decodes


def served(bench: Bench, batches: Sequence[Batch]) -> list[list[Iteration]]:
    """The iterations of each batch, one batch after the other."""
    phases = [
        Phase(
            [
                Request(MAX_SEQS * i + j, 0, length, batch.output_len)
                for j, length in enumerate(batch.prompt_lens)
            ]
        )
        for i, batch in enumerate(batches)
    ]
    longest = max(request.final_len for phase in phases for request in phase.residents) + BLOCK
    num_blocks = max(
        sum(ceil_div(n + batch.output_len + 1, BLOCK) for n in batch.prompt_lens)
        for batch in batches
    )
    pool = PoolSpec(BLOCK * (num_blocks + MAX_SEQS), longest)
    scheduler = ahead(Paged(pool, block_size=BLOCK), MAX_SEQS)
    engine = assemble(scheduler, pool, bench.arch, bench.weights, bench.options, bench.lead)
    return in_phases(engine, phases)


def _compared(number: int, iterations: Sequence[Iteration], cost: CostModel) -> Compared:
    works = [iteration.work for iteration in iterations]
    seconds = on_gpu if works[0].prefill else lasting
    return Compared(
        batch=number,
        decode_seqs=works[0].decode_seqs,
        decode_context=int(np.median([work.decode_context for work in works])),
        prompt_tokens=sum(new for new, _ in works[0].prefill),
        measured_us=float(np.median([seconds(iteration) * 1e6 for iteration in iterations])),
        predicted_us=float(np.median([cost.iteration(work) / 1e6 for work in works])),
    )


def _within_limit(name: str, frame: pd.DataFrame) -> bool:
    """Print the errors of these rows, and whether their mean time is right."""
    errors = frame.predicted_us / frame.measured_us - 1
    total = frame.predicted_us.sum() / frame.measured_us.sum() - 1
    low, middle, high = errors.quantile([0.05, 0.5, 0.95])
    is_right = bool(abs(total) <= LIMIT)
    print(
        f"{len(frame)} {name}: mean time {total:+.1%}, of each {middle:+.1%} (90% of them "
        f"{low:+.1%} to {high:+.1%}): {'right' if is_right else 'WRONG'}, limit {LIMIT:.0%}"
    )
    return is_right
