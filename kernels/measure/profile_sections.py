"""The sections of a cost profile, measured.

A profile is measured on one GPU with the shapes of one shard. It contains every measured point;
`testbed.cost.profile` computes costs from it. The fit is then tested on random ragged decode
iterations outside the sweep.
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import partial
from itertools import chain, product, starmap
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from testbed.core.specs import ModelSpec
from testbed.cost.model import Work
from testbed.cost.profile import ProfileCost
from testbed.cost.sections import AXES, FORMAT, PROFILES, read_profile
from testbed.cost.software import KERNELS_ALONE
from testbed.kernels.engine.network import Network
from testbed.kernels.launch.attention import decode
from testbed.kernels.launch.cache_ops import write_cache
from testbed.kernels.launch.compile import precompile
from testbed.kernels.launch.decode_plan import plan_decode
from testbed.kernels.launch.host_memory import pinned
from testbed.kernels.measure import sweeps
from testbed.kernels.measure.all_reduce import all_reduce
from testbed.kernels.measure.bench_inputs import DecodeInputs, Pools, shard_shape
from testbed.kernels.measure.network_sections import (
    all_layers,
    head_points,
    layer_points,
    shard_network,
)
from testbed.kernels.measure.sweeps import Point
from testbed.kernels.measure.timing import file_name, fingerprint, time_graph, warm_up
from testbed.kernels.verify.verify_attention import variants

POOL_BYTES = 24 << 30
PROMPT_BYTES = 4 << 30
SWAP_BYTES = 3 << 30
NUM_HOLDOUT = 200
MAX_MEAN_CONTEXT = 1536
FIT = ["num_seqs", "total_context", "longest_context", "measured_us", "predicted_us"]


def described(points: Mapping[str, list[Point]], **notes: str) -> dict[str, Any]:
    """Points as sections of a profile, described as in sections.toml but for these notes."""
    about = tomllib.loads(Path(__file__).with_name("sections.toml").read_text(encoding="utf-8"))
    return {
        name: {
            "covers": about[name]["covers"],
            "axes": list(AXES[name][-1]),
            "columns": ["median_us", "low_us", "high_us"],
            "note": notes.get(name, about[name].get("note", "")),
            "points": rows,
        }
        for name, rows in points.items()
    }


def attention_points(model: ModelSpec, num_gpus: int) -> dict[str, list[Point]]:
    """Decode by three kernels, prefill, both together, cache write."""
    pools, longest = Pools(POOL_BYTES), min(model.max_len, 16_384)
    shapes = {size: shard_shape(model, num_gpus, size) for size in sweeps.BLOCK_SIZES}

    def decodes(kernel: str, sizes: Iterable[int], spread: str = "ragged") -> list[Point]:
        return [
            row
            for s in sizes
            for row in sweeps.decode_attention(pools, shapes[s], longest, spread, kernel)
        ]

    others = [size for size in sweeps.BLOCK_SIZES if size != 16]
    return {
        "decode_attention": decodes("paged", [16])
        + decodes("paged", [16], "equal")
        + decodes("paged", others),
        "decode_attention_paper_kernel": decodes("paper", sweeps.BLOCK_SIZES),
        "contiguous_attention": decodes("contiguous", [16]),
        "prefill_attention": sweeps.prefill_attention(pools, shapes[16], longest),
        "mixed_attention": sweeps.mixed_attention(Pools(PROMPT_BYTES), pools, shapes[16], longest),
        "cache_write": sweeps.cache_write(pools, shapes[16]),
    }


def shipped(model: ModelSpec, num_gpus: int) -> dict[str, Any] | None:
    """The profile that ships for this device, of which some sections will be replaced; None if
    none ships.
    """
    here = fingerprint()
    name = file_name({"fingerprint": here, "model": asdict(model), "num_gpus": num_gpus})
    if not (PROFILES / name).exists():
        return None
    return read_profile(name.removesuffix(".json"))


def move_points(model: ModelSpec, num_gpus: int) -> dict[str, list[Point]]:
    """Block copy and swap over all layers, by block size."""
    copies, swaps, shape = list[Point](), list[Point](), shard_shape(model, num_gpus)
    token_bytes = 2 * model.num_layers * shape.num_kv_heads * shape.head_size * 2
    tokens = min(1024, SWAP_BYTES // token_bytes // 256 * 256)
    device = torch.randn(
        tokens * token_bytes, device="cuda", dtype=torch.float16
    )  # twice what is swapped
    below = pinned((tokens * token_bytes // 2,), torch.float16)
    for size in sweeps.BLOCK_SIZES:
        block = (shape.num_kv_heads, size, shape.head_size)
        pool = device.view(2 * model.num_layers, -1, *block)
        copies += sweeps.block_copy(pool)
        counts = sorted({max(1, t // size) for t in (1, 16, 256, tokens)})
        swaps += sweeps.swap(pool, below.view(-1, 2 * model.num_layers, *block), counts)
    return {"block_copy": copies, "swap": swaps}


def whole_profile(model: ModelSpec, num_gpus: int) -> dict[str, Any]:
    """The whole profile of one model's shard on this GPU, with its fit tested; on a machine with
    one GPU it has no all-reduces.
    """
    torch.cuda.empty_cache()
    shapes = [shard_shape(model, num_gpus, size) for size in sweeps.BLOCK_SIZES]
    plans = {plan_decode(rows, 1, model.head_size, 256, 132) for rows in (1, 500, 10_000)}
    precompile(list(chain.from_iterable(starmap(variants, product(shapes, plans)))))
    network = shard_network(model, num_gpus)
    warm_up()
    points = {
        "linear": layer_points(network, sweeps.LINEAR_TOKENS),
        "output_head": head_points(network, sweeps.HEAD_ROWS),
        "overhead": sweeps.overheads(),
    }
    if num_gpus > 1 and (reduced := all_reduce(num_gpus)):
        points["all_reduce"] = reduced
    sections = described(points)
    for measured in (attention_points, move_points):
        sections |= described(measured(model, num_gpus))
        torch.cuda.empty_cache()
    about = {
        "format": FORMAT,
        "fingerprint": fingerprint(),
        "model": asdict(model),
        "num_gpus": num_gpus,
    }
    profile: dict[str, Any] = {**about, "sections": sections}
    return {**profile, "fit": evaluate_fit(profile, network, Pools(POOL_BYTES), NUM_HOLDOUT)}


def random_lens(rng: np.random.Generator, longest: int, num_slots: int) -> list[int]:
    """Contexts of 1 to 256 sequences, mean 32 to 1536 tokens, log-normal spread; cut to num_slots
    in total.
    """
    num_seqs = round(float(np.exp(rng.uniform(0, np.log(256)))))
    mean = float(np.exp(rng.uniform(np.log(32), np.log(min(MAX_MEAN_CONTEXT, longest)))))
    mean = min(mean, num_slots / num_seqs)
    lens = rng.lognormal(np.log(mean) - 0.32, 0.8, num_seqs)
    return [int(x) for x in np.clip(np.round(lens), 1, longest)]


def measure_iteration(network: Network, num_layers: int, inputs: DecodeInputs) -> float:
    """Microseconds of a decode iteration: measured layers scaled to all layers, plus the output
    head.
    """
    lens, shape, last = inputs.lens, inputs.shape, np.array(inputs.lens) - 1
    ids = (
        inputs.tables.cpu().numpy()[np.arange(len(lens)), last // shape.block_size].astype(np.int64)
    )
    slots = torch.from_numpy(ids * shape.block_size + last % shape.block_size).cuda()
    x = torch.randn(len(lens), network.arch.spec.hidden_size, dtype=torch.float16, device="cuda")
    caches = list(zip(inputs.k_cache, inputs.v_cache, strict=True))
    places = inputs.tables, inputs.context_lens

    def bind(q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> Callable[[int], None]:
        def attend(i: int) -> None:
            layer = caches[i % len(caches)]
            write_cache(*layer, k, v, slots)
            decode(
                out, q, *layer, *places, max_context_len=inputs.longest, workspace=inputs.workspace
            )

        return attend

    of_layers = partial(all_layers, network, x, inputs.context_lens, bind)
    of_head = partial(network.project_out, x, carried=None, head=network.weights.head)
    layers = time_graph([of_layers], replays=5, min_us=1000.0)
    head = time_graph([of_head], replays=5, min_us=300.0)
    return layers.median_us / len(network.layers) * num_layers + head.median_us


def evaluate_fit(
    profile: dict[str, Any], network: Network, pools: Pools, num_batches: int
) -> dict[str, Any]:
    """Relative errors of the profile's costs on `num_batches` random iterations, and the
    batches.
    """
    model, num_gpus = ModelSpec(**profile["model"]), profile["num_gpus"]
    cost = ProfileCost(model, server=None, path=profile, software=KERNELS_ALONE)
    rng, shape, rows = np.random.default_rng(2023), shard_shape(model, num_gpus), []
    num_slots = pools.blocks(shape) * shape.block_size // 2
    for seed in range(num_batches):
        lens = random_lens(rng, min(model.max_len, 16_384), num_slots)
        measured = measure_iteration(
            network, model.num_layers, DecodeInputs(pools, shape, lens, seed)
        )
        predicted = cost.iteration(Work(len(lens), sum(lens), max(lens))) / 1e6
        rows.append([len(lens), sum(lens), max(lens), round(measured, 1), round(predicted, 1)])
    errors = np.array([abs(predicted / measured - 1) for *_, measured, predicted in rows])
    median, p95 = (round(float(np.percentile(errors, percent)), 5) for percent in (50, 95))
    return {
        "axes": FIT,
        "num_batches": len(rows),
        "median_error": median,
        "p95_error": p95,
        "points": rows,
    }
