"""Tests a profile's costs on decode iterations outside its sweep: whole layers in one graph, random ragged batches."""

from functools import partial
from typing import Any

import numpy as np
import torch

from testbed.core.specs import ModelSpec
from testbed.cost.model import Work
from testbed.cost.profile import Choices, ProfileCost
from testbed.kernels.launch.attention import paged_decode
from testbed.kernels.launch.cache_ops import write_cache
from testbed.kernels.measure.bench_inputs import DecodeInputs, Pools
from testbed.kernels.measure.layers import Layers, shard_shape
from testbed.kernels.measure.timing import time_graph

MAX_MEAN_CONTEXT = 1536
AXES = ["num_seqs", "total_context", "longest_context", "measured_us", "predicted_us"]


def random_lens(rng: np.random.Generator, longest: int, num_slots: int) -> list[int]:
    """Contexts of 1 to 256 sequences, mean 32 to 1536 tokens, log-normal spread; cut to num_slots in total."""
    num_seqs = round(float(np.exp(rng.uniform(0, np.log(256)))))
    mean = float(np.exp(rng.uniform(np.log(32), np.log(min(MAX_MEAN_CONTEXT, longest)))))
    mean = min(mean, num_slots / num_seqs)
    lens = rng.lognormal(np.log(mean) - 0.32, 0.8, num_seqs)
    return [int(x) for x in np.clip(np.round(lens), 1, longest)]


def measure_iteration(layers: Layers, pools: Pools, num_gpus: int, lens: list[int], seed: int) -> float:
    """Microseconds of a decode iteration: measured layers scaled to all layers, plus the output head."""
    shape, model = shard_shape(layers.model, num_gpus), layers.model
    inputs, last = DecodeInputs(pools, shape, lens, seed), np.array(lens) - 1
    ids = inputs.tables.cpu().numpy()[np.arange(len(lens)), last // shape.block_size].astype(np.int64)
    slots = torch.from_numpy(ids * shape.block_size + last % shape.block_size).cuda()
    x = torch.randn(len(lens), model.hidden_size, dtype=torch.float16, device="cuda")
    caches = list(zip(inputs.k_cache, inputs.v_cache, strict=True))[: len(layers.layers)]

    def run(i: int) -> None:
        q, k, v = layers.project(x, layers.layers[i])
        write_cache(*caches[i], k, v, slots)
        places = inputs.tables, inputs.context_lens
        paged_decode(inputs.out[0], q, *caches[i], *places, max_context_len=max(lens), workspace=inputs.workspace)
        layers.feed_forward(x, inputs.out[0], layers.layers[i])

    layer_us = time_graph([partial(run, i) for i in range(len(caches))], 5, 1000.0).median_us
    head_us = time_graph([partial(layers.project_out, x, layers.head)], 5, 300.0).median_us
    return layer_us * model.num_layers + head_us


def evaluate_fit(profile: dict[str, Any], layers: Layers, pools: Pools, num_batches: int) -> dict[str, Any]:
    """Relative errors of the profile's costs on `num_batches` random iterations, and the batches."""
    model, num_gpus = ModelSpec(**profile["model"]), profile["num_gpus"]
    cost = ProfileCost(model, None, profile, Choices(overhead_s=0.0))
    rng, shape, rows = np.random.default_rng(2023), shard_shape(model, num_gpus), []
    num_slots = pools.blocks(shape) * shape.block_size // 2
    for seed in range(num_batches):
        lens = random_lens(rng, min(model.max_len, 16_384), num_slots)
        measured = measure_iteration(layers, pools, num_gpus, lens, seed)
        predicted = cost.iteration(Work(len(lens), sum(lens), max(lens))) / 1e6
        rows.append([len(lens), sum(lens), max(lens), round(measured, 1), round(predicted, 1)])
    errors = np.array([abs(predicted / measured - 1) for *_, measured, predicted in rows])
    median, p95 = (round(float(np.percentile(errors, percent)), 5) for percent in (50, 95))
    return {"axes": AXES, "num_batches": len(rows), "median_error": median, "p95_error": p95, "points": rows}
