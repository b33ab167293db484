"""`python -m kernels.measure.calibrate --model NAME --tp N --out FILE`: verify, sweep, write, test the fit.

A profile is measured on one GPU with the shapes of one shard. It holds every measured point; `testbed.cost.profile`
turns it into prices. The fit is then tested on random ragged decode iterations that the sweep never saw.
"""

import argparse
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from kernels.launch.compile import architecture, precompile, require_gpu
from kernels.launch.decode_plan import plan_decode
from kernels.launch.prefill_attention import has_wgmma
from kernels.launch.prefill_tma import TmaPlan, constants
from kernels.measure import sweeps
from kernels.measure.all_reduce import all_reduce
from kernels.measure.bench_inputs import Pools
from kernels.measure.fingerprint import fingerprint
from kernels.measure.holdout import evaluate_fit
from kernels.measure.layers import Layers
from kernels.measure.mixed_batches import AXES as MIXED_AXES
from kernels.measure.mixed_batches import mixed_attention
from kernels.measure.overheads import overheads
from kernels.measure.shards import shard_shape
from kernels.measure.timing import warm_up
from kernels.verify.random_batches import Shape
from kernels.verify.verify_attention import verify
from testbed.core.shapes import read_model
from testbed.core.specs import ModelSpec
from testbed.cost.sections import read_profile

POOL_BYTES = 24 << 30
PROMPT_BYTES = 4 << 30
SWAP_BYTES = 3 << 30
INNER_LIST = re.compile(r"\[\s+([^\[\]{}]*?)\s+\]")
NUM_HOLDOUT = 200
PER_LAYER = "one layer; times num_layers"


def section(unit: str, axes: Sequence[str], points: list[sweeps.Point], note: str = "") -> dict[str, Any]:
    """One section of a profile: what a point's leading columns mean and what its time covers."""
    return {
        "covers": unit,
        "axes": list(axes),
        "columns": ["median_us", "low_us", "high_us"],
        "note": note,
        "points": points,
    }


def attention_sections(model: ModelSpec, num_gpus: int) -> dict[str, Any]:
    """Decode by three kernels, prefill, both together, cache write."""
    pools, axes = Pools(POOL_BYTES), ("block_size", "spread", "num_seqs", "total_context")
    shapes = {size: shard_shape(model, num_gpus, size) for size in sweeps.BLOCK_SIZES}
    longest = min(model.max_len, 16_384)

    def decode(kernel: str, sizes: Sequence[int], spreads: Sequence[str]) -> list[sweeps.Point]:
        return [
            row
            for size in sizes
            for spread in spreads
            for row in sweeps.decode_attention(pools, shapes[size], longest, spread, kernel)
        ]

    paged = decode("paged", (16,), ("ragged", "equal")) + decode(
        "paged", [s for s in sweeps.BLOCK_SIZES if s != 16], ("ragged",)
    )
    return {
        "decode_attention": section(PER_LAYER, axes, paged),
        "decode_attention_paper_kernel": section(PER_LAYER, axes, decode("paper", sweeps.BLOCK_SIZES, ("ragged",)),
                                                 "the paper's design: one warp per block"),
        "contiguous_attention": section(PER_LAYER, axes, decode("contiguous", (16,), ("ragged",)),
                                        "one extent per sequence; block size without meaning"),
        "prefill_attention": section(PER_LAYER, ("num_seqs", "new_tokens", "past_tokens"),
                                     sweeps.prefill_attention(pools, shapes[16], longest), "block size 16"),
        "mixed_attention": mixed_section(pools, shapes[16], longest),
        "cache_write": section(PER_LAYER, ("num_tokens",), sweeps.cache_write(pools, shapes[16]), "block size 16"),
    }  # fmt: skip


def mixed_section(pools: Pools, shape: Shape, longest: int) -> dict[str, Any]:
    """Prompts beside decodes."""
    points = mixed_attention(Pools(PROMPT_BYTES), pools, shape, longest)
    return section(PER_LAYER, MIXED_AXES, points, "block size 16, ragged lengths; both kernels in one stream")


def with_mixed_section(profile: Mapping[str, Any]) -> dict[str, Any]:
    """A measured profile with that section measured now, on the same device; its other sections stay as they are."""
    here, there = fingerprint(), profile["fingerprint"]
    if here["device"] != there["device"]:
        raise SystemExit(f"the profile was measured on {there['device']}, this is {here['device']}")
    model = ModelSpec(**profile["model"])
    shape = shard_shape(model, profile["num_gpus"], 16)
    warm_up()
    added = {"mixed_attention": mixed_section(Pools(POOL_BYTES), shape, min(model.max_len, 16_384))}
    told = {**there, "mixed_attention": here}
    return {**profile, "fingerprint": told, "sections": {**profile["sections"], **added}}


def move_sections(model: ModelSpec, num_gpus: int) -> dict[str, Any]:
    """Block copy and swap over all layers, by block size."""
    copies: list[sweeps.Point] = []
    swaps: list[sweeps.Point] = []
    shape = shard_shape(model, num_gpus)
    token_bytes = 2 * model.num_layers * shape.num_kv_heads * shape.head_size * 2
    tokens = min(1024, SWAP_BYTES // token_bytes // 256 * 256)
    device = torch.randn(tokens * token_bytes, device="cuda", dtype=torch.float16)  # twice what is swapped
    pinned = torch.empty(tokens * token_bytes // 2, dtype=torch.float16, pin_memory=True)
    for size in sweeps.BLOCK_SIZES:
        block = (shape.num_kv_heads, size, shape.head_size)
        pool = device.view(2 * model.num_layers, -1, *block)
        host = pinned.view(-1, 2 * model.num_layers, *block)
        copies += sweeps.block_copy(pool)
        counts = sorted({max(1, t // size) for t in (1, 16, 256, tokens)})
        swaps += sweeps.swap(pool, host, counts)
    return {
        "block_copy": section("all layers, K and V", ("block_size", "num_blocks"), copies),
        "swap": section(
            "all layers, K and V, host part included", ("method", "direction", "block_size", "num_blocks"), swaps
        ),
    }


def calibrate(model: ModelSpec, num_gpus: int, reduced: dict[str, Any] | None = None) -> dict[str, Any]:
    """The whole profile of one model's shard on this GPU, its fit already tested.

    reduced: an all_reduce section measured elsewhere, for a machine that has one GPU only.
    """
    layers = Layers(model, num_gpus)
    warm_up()
    note = "matrix products, norms, residual adds, activation; no position embedding, no sampling"
    profile: dict[str, Any] = {
        "format": 1,
        "fingerprint": fingerprint(),
        "model": asdict(model),
        "num_gpus": num_gpus,
        "sections": {
            "linear": section(PER_LAYER, ("num_tokens",), sweeps.linear(layers), note),
            "output_head": section(
                "once per iteration", ("num_rows",), sweeps.output_head(layers), "final norm and output projection"
            ),
            "overhead": section("as named", ("what",), overheads()),
        },
    }
    if points := all_reduce(num_gpus):
        reduced = section("one all-reduce", ("num_gpus", "bytes"), points, "NCCL, fp16, NVLink multicast off")
    if num_gpus > 1 and reduced:
        profile["sections"]["all_reduce"] = reduced
    profile["sections"] |= attention_sections(model, num_gpus)
    torch.cuda.empty_cache()
    profile["sections"] |= move_sections(model, num_gpus)
    torch.cuda.empty_cache()
    profile["fit"] = evaluate_fit(profile, layers, Pools(POOL_BYTES), NUM_HOLDOUT)
    return profile


def variants(model: ModelSpec, num_gpus: int) -> list[tuple[str, dict[str, int]]]:
    """Kernels the sweeps will launch, compiled in parallel beforehand."""
    shape = shard_shape(model, num_gpus)
    base = {"HEAD_SIZE": shape.head_size, "GROUP": shape.num_heads // shape.num_kv_heads, "BF16": 0}
    plans = {
        tuple(p.constants.items())
        for p in (plan_decode(rows, 1, shape.head_size, 256, 132) for rows in (1, 500, 10_000))
    }
    found = [("prefill.cu", base | {"BLOCK_SIZE": 16})]
    if has_wgmma(shape.head_size):
        found.append(("prefill_tma.cu", base | constants(base["GROUP"], 16, TmaPlan())))
    for size in sweeps.BLOCK_SIZES:
        found.append(("paper_decode.cu", base | {"BLOCK_SIZE": size}))
        for cut in map(dict, plans):
            found.append(("decode.cu", base | cut | {"PAGED": 1, "BLOCK_SIZE": size}))
            if size == 1:
                found.append(("decode.cu", base | cut | {"PAGED": 0, "BLOCK_SIZE": 1}))
    return found


def dump(profile: dict[str, Any]) -> str:
    """JSON with one measured point per line."""
    text = json.dumps(profile, indent=1)
    return INNER_LIST.sub(lambda match: "[" + " ".join(match[1].split()) + "]", text) + "\n"


def file_name(profile: dict[str, Any]) -> str:
    """Name under which a profile ships, such as h200-opt-13b-tp1.json."""
    device = profile["fingerprint"]["device"].removeprefix("NVIDIA ").lower().replace(" ", "-")
    return f"{device}-{profile['model']['name']}-tp{profile['num_gpus']}.json"


def measure(models: Sequence[tuple[str, int]], options: argparse.Namespace) -> None:
    """Verify the kernels, then write one profile for each model and its tensor-parallel degree."""
    require_gpu()
    reduced = read_profile(options.all_reduce)["sections"]["all_reduce"] if options.all_reduce else None
    if not verify(options.rounds):
        raise SystemExit("a kernel disagrees with its reference: nothing was measured")
    for name, num_gpus in models:
        started = time.monotonic()
        model = read_model(name)
        precompile(variants(model, num_gpus), architecture("{}{}".format(*torch.cuda.get_device_capability())))
        if options.add_mixed:
            asked = {"fingerprint": fingerprint(), "model": asdict(model), "num_gpus": num_gpus}
            profile = with_mixed_section(read_profile(file_name(asked).removesuffix(".json")))
        else:
            profile = calibrate(model, num_gpus, reduced)
        path = options.out / file_name(profile) if options.out.is_dir() else options.out
        path.write_text(dump(profile))
        fit, seconds = profile["fit"], time.monotonic() - started
        errors = f"median error {fit['median_error']:.2%}, p95 {fit['p95_error']:.2%}"
        batches = f"{fit['num_batches']} unseen ragged batches"
        print(f"{name} tp {num_gpus}: {errors} on {batches}; {seconds:.0f} s -> {path.name}", flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    from kernels.measure.calibrate_command import main

    main()
