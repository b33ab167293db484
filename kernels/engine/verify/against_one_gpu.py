"""The engine over several ranks against the engine on one: small models of every family in fp32,
and a shipped model's shape in bf16, with random weights.

Sums over ranks round in another order, as matrix products of another batch size do. So the
tolerance is fixed before the ranks run: twice the largest difference of a logit between two batch
sizes of one rank. No logit may differ by more if the tokens before it are the same, and another
token may be chosen only if the best two are nearer than that.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial

import torch

from testbed.core.shapes import read_model
from testbed.core.specs import ModelSpec
from testbed.kernels.engine.architecture import Architecture, of_spec
from testbed.kernels.engine.parallel.processes import Started, start
from testbed.kernels.engine.parallel.worker import Source
from testbed.kernels.engine.random_weights import random_weights
from testbed.kernels.engine.verify.against_plain import (
    SMALL_BATCH,
    Comparison,
    Logits,
    by_tokens,
    comparison,
    largest_difference,
)
from testbed.kernels.engine.verify.scenarios import SCENARIOS, Scenario, record
from testbed.kernels.engine.weights import Weights
from testbed.memory.paged.paged import Paged

GRAPHS = 64
TINY_LLAMA = ModelSpec(
    name="llama",
    num_layers=2,
    hidden_size=256,
    num_heads=4,
    num_kv_heads=2,
    head_size=64,
    ffn_size=512,
    ffn_matrices=3,
    vocab_size=509,
    max_len=512,
)
TINY_OPT = replace(TINY_LLAMA, name="opt", num_kv_heads=4, ffn_matrices=2, tied_embedding=True)
TINY_QWEN2 = replace(TINY_LLAMA, name="qwen2", tied_embedding=True)
FAMILIES = {
    "opt": Architecture(TINY_OPT, "opt"),
    "llama": Architecture(TINY_LLAMA, "llama"),
    "qwen2": Architecture(TINY_QWEN2, "qwen2", qkv_bias=True),
    "one kv head": Architecture(replace(TINY_LLAMA, num_kv_heads=1), "llama"),
}
# Of the scenarios: prefix cache, tier, swaps, forks, beams, chunks, extents, launches ahead.
NAMES = (
    "blocks of 16",
    "prefix hit",
    "loads from a tier",
    "swap and back",
    "fork and copy-on-write",
    "fork into extents",
    "beams of 4",
    "chunked prefill",
    "launched ahead, recompute",
)
BASE = Scenario("two batch sizes", partial(Paged, block_size=16), below=0)


def verify_parallel(name: str | None, num_gpus: int) -> bool:
    """Compare num_gpus GPUs with one, on a shipped model in bf16, or on small ones in fp32 (None);
    prints a line for each scenario, and returns whether all are right.
    """
    graphs: tuple[int, ...] = (0,) if name is None else (0, GRAPHS)
    is_right = True
    for key, model in models_of(name).items():
        for scenario, mode, judged in compare(model, num_gpus, chosen(), graphs):
            is_right = is_right and judged.is_right
            print(f"{key}, {num_gpus} GPUs, {scenario}, {mode}: {judged}", flush=True)
    return is_right


def models_of(name: str | None) -> dict[str, Source]:
    """A shipped model in bf16, or the small ones in fp32 (None)."""
    if name is None:
        return {key: Source(arch, dtype="float32") for key, arch in FAMILIES.items()}
    return {name: Source(of_spec(read_model(name)), dtype="bfloat16")}


def weights_of_all(model: Source) -> Weights:
    """All of a model's random weights."""
    return random_weights(model.arch, model.seed, model.device, getattr(torch, model.dtype))


def chosen() -> list[Scenario]:
    """The scenarios of NAMES."""
    return [scenario for scenario in SCENARIOS if scenario.name in NAMES]


def compare(
    model: Source, num_ranks: int, scenarios: Iterable[Scenario], graphs: Iterable[int]
) -> Iterator[tuple[str, str, Comparison]]:
    """The comparison of each scenario, in debug mode (graphs 0) or by graphs."""
    weights = weights_of_all(model)
    tolerance = tolerance_of(lambda base: by_tokens(record(base, model.arch, weights)))
    ranks = start(model, num_ranks)
    with closing(ranks.lead):
        for scenario in scenarios:
            on_one_gpu = by_tokens(record(scenario, model.arch, weights))
            for size in graphs:
                on_many = recorded(ranks, scenario, size)
                judged = judge(on_one_gpu, on_many, tolerance)
                yield scenario.name, "graphs" if size else "debug", judged


def recorded(ranks: Started, scenario: Scenario, graphs: int) -> Logits:
    """The network of the ranks."""
    return by_tokens(record(scenario, ranks.arch, ranks.weights, graphs, ranks.lead))


def tolerance_of(plain: Callable[[Scenario], Logits]) -> float:
    """The tolerance by two batch sizes of a plain path."""
    sizes = BASE.max_num_seqs, SMALL_BATCH
    return 2 * largest_difference(*[plain(replace(BASE, max_num_seqs=size)) for size in sizes])


def judge(one: Logits, many: Logits, tolerance: float) -> Comparison:
    """One rank against many, the logits too."""
    compared = comparison(one, many, tolerance)
    return compared._replace(difference=largest_difference(one, many))
