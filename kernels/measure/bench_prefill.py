"""`python -m kernels.measure.bench_prefill [--out FOLDER]`: variants of prefill, checked, then timed beside torch."""

import argparse
import csv
from pathlib import Path

import numpy as np
import torch

from kernels.launch.prefill_attention import paged_prefill
from kernels.launch.prefill_tma import TmaPlan
from kernels.measure.bench_inputs import Pools, PrefillInputs
from kernels.measure.timing import time_graph, warm_up
from kernels.verify import reference
from kernels.verify.random_batches import Shape, random_batch
from kernels.verify.verify_attention import TOLERANCE, poisoned

MHA, GQA, SMALL = Shape(40, 40, 128), Shape(32, 8, 128), Shape(14, 2, 64)
# (shape, sequences, new tokens): FlashAttention-3 in FlashInfer 0.5.3 on pages of 16, torch SDPA; microseconds, H200;
# 0 where none was measured.
KNOWN = {
    (MHA, 1, 1024): (0, 0), (GQA, 1, 1024): (0, 0), (GQA, 1, 4096): (0, 0), (SMALL, 8, 1024): (0, 0),
    (SMALL, 16, 161): (0, 0), (MHA, 32, 64): (0, 0), (GQA, 32, 64): (0, 0),
    (MHA, 1, 2048): (118, 101), (MHA, 1, 4096): (357, 324), (MHA, 4, 1024): (131, 105), (MHA, 16, 161): (60, 47),
    (MHA, 1, 16384): (5371, 4928), (GQA, 1, 2048): (95, 84), (GQA, 4, 1024): (104, 86), (GQA, 16, 161): (47, 39),
    (GQA, 1, 16384): (4725, 3982),
}  # fmt: skip
PLANS = {
    "standard": TmaPlan(), "packed": TmaPlan(pack=True), "16 MB": TmaPlan(l2_share=16 << 20),
    "no pingpong": TmaPlan(pingpong=False), "not lazy": TmaPlan(lazy=False),
}  # fmt: skip
CASES = (
    (Shape(8, 2, 128, 16), [700, 1, 33, 290], [700, 1, 20, 129]), (Shape(14, 2, 64, 16), [161] * 4, [161] * 4),
    (Shape(4, 4, 128, 8, torch.bfloat16), [129, 128, 5], [100, 128, 2]), (Shape(3, 3, 64, 256), [1000, 260], [300, 1]),
    (Shape(8, 1, 128, 128, torch.bfloat16), [385, 512, 3], [385, 130, 3]), (Shape(4, 2, 64, 32), [2000], [1999]),
)  # fmt: skip


def check(plan: TmaPlan) -> float:
    """The worst share of the tolerance that a plan's errors take, each case three times: a moving error is a race."""
    return max(error_on(plan, seed, *case) for seed, case in enumerate(CASES) for _ in range(3))


def error_on(plan: TmaPlan, seed: int, shape: Shape, lens: list[int], news: list[int]) -> float:
    """The error on one random batch, as a share of the tolerance."""
    batch = random_batch(np.random.default_rng(seed), shape, lens, sum(news))
    starts = torch.tensor(np.cumsum([0, *news]), dtype=torch.int32).cuda()
    tensors = batch.q, batch.k_cache, batch.v_cache, batch.block_tables
    want = reference.paged_prefill(*tensors, news, lens)
    options = {"max_query_len": max(news), "kind": "tma", "plan": plan}
    got = poisoned(batch.q, lambda out: paged_prefill(out, *tensors, starts, batch.context_lens, **options))
    return reference.relative_error(got, want) / TOLERANCE[shape.dtype]


def right_on(inputs: PrefillInputs, plan: TmaPlan) -> bool:
    """Whether a plan agrees with the kernel for all GPUs, on the timed inputs."""
    tensors = inputs.q, inputs.k_cache[0], inputs.v_cache[0], inputs.tables, inputs.starts, inputs.context_lens
    options = {"max_query_len": inputs.max_new}
    want = poisoned(inputs.q, lambda out: paged_prefill(out, *tensors, **options, kind="mma"))
    got = poisoned(inputs.q, lambda out: paged_prefill(out, *tensors, **options, kind="tma", plan=plan))
    return reference.relative_error(got, want.double()) <= 2 * TOLERANCE[inputs.shape.dtype]


def main() -> None:
    """Check every plan, time those that are right, print and keep a table."""
    parser = argparse.ArgumentParser("python -m kernels.measure.bench_prefill", description=__doc__)
    parser.add_argument("--out", type=Path, help="folder of prefill.csv")
    options = parser.parse_args()
    plans = {}
    for name, plan in PLANS.items():
        share = check(plan)
        print(f"{name}: error {share:.2f} of the tolerance", flush=True)
        plans |= {name: plan} if share <= 1 else {}
    pools, rows = Pools(4 << 30), []
    warm_up()
    for (shape, n, length), (fa3, sdpa) in KNOWN.items():
        inputs = PrefillInputs(pools, shape, [length] * n)
        times = {"wgmma": time_graph(inputs.paged("wgmma")).median_us, "torch": time_graph(inputs.sdpa()).median_us}
        for name, plan in plans.items():
            times[name] = time_graph(inputs.paged("tma", plan)).median_us if right_on(inputs, plan) else float("nan")
        row = {"heads": f"{shape.num_heads}/{shape.num_kv_heads}", "batch": f"{n}x{length}", "fa3": fa3, "sdpa": sdpa,
               **{name: round(time, 1) for name, time in times.items()}}  # fmt: skip
        rows.append(row)
        print(row, flush=True)
    if options.out:
        with (options.out / "prefill.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
