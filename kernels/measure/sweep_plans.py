"""`python -m kernels.measure.sweep_plans`: decode times under every way to cut a launch, beside torch; needs a GPU."""

from itertools import product

from kernels.launch.compile import multiprocessors
from kernels.launch.decode_plan import CTAS_PER_SM, MAX_WAVE, DecodePlan, plan_decode
from kernels.measure.bench_inputs import DecodeInputs, Pools
from kernels.measure.timing import time_graph, warm_up
from kernels.verify.random_batches import Shape

QWEN, LARGE, GQA = Shape(14, 2, 64), Shape(64, 8, 128), Shape(32, 8, 128)
BATCHES = (
    (QWEN, 8, 1024), (QWEN, 32, 256), (QWEN, 32, 1024), (QWEN, 32, 4096), (QWEN, 128, 1024),
    (LARGE, 8, 8192), (LARGE, 8, 2048), (LARGE, 1, 16384), (LARGE, 32, 4096), (GQA, 8, 8192),
)  # fmt: skip
CHUNKS = (64, 128, 192, 256, 384, 512, 704, 832, 1024, 1408, 2048, 2752, 4096)
WARPS = ((2, 2.0), (4, 1.0), (4, 1.34), (8, 0.5))  # warps a thread block, share of the thread blocks that 4 warps have


def plans(shape: Shape, longest: int, wave: bool) -> list[DecodePlan]:
    """Every plan worth trying; `wave`: whether all sequences run at once uncut."""
    found = {
        DecodePlan(warps, max(1, round(CTAS_PER_SM[shape.head_size] * share)), -(-chunk // (16 * warps)) * 16 * warps)
        for (warps, share), chunk in product(WARPS, CHUNKS)
        if chunk <= max(longest, 64) and longest <= 128 * chunk
    }
    found |= {DecodePlan(8, 1, max(256, -(-longest // 1024) * 128), wave=True)} if wave else set()
    return sorted(found, key=lambda plan: (plan.num_warps, plan.ctas_per_sm, plan.chunk_tokens, plan.wave))


def named(plan: DecodePlan) -> str:
    """A plan in short."""
    return f"{plan.num_warps}/{plan.ctas_per_sm}/{plan.chunk_tokens}" + "w" * plan.wave


def main() -> None:
    """One line a batch: torch, the plan that stands, and the best of all."""
    pools = Pools(4 << 30)
    warm_up()
    for shape, batch, context in BATCHES:
        inputs = DecodeInputs(pools, shape, [context] * batch)
        groups = shape.num_kv_heads * -(-shape.num_heads // shape.num_kv_heads // 8)
        now = plan_decode(batch, groups, shape.head_size, context, multiprocessors(0))
        wave = batch <= min(MAX_WAVE, multiprocessors(0) // groups)
        times = {plan: time_graph(inputs.paged(plan), 5, 600).median_us for plan in plans(shape, context, wave)}
        standing, torch_us = time_graph(inputs.paged(now)).median_us, time_graph(inputs.sdpa()).median_us
        best = sorted(times, key=times.__getitem__)[:6]
        text = ", ".join(f"{named(p)} {times[p]:.1f}" for p in best)
        name = f"{shape.num_heads}/{shape.num_kv_heads} of {shape.head_size}, {batch}x{context}"
        print(f"{name}: torch {torch_us:.1f}, now {standing:.1f} ({named(now)}); best {text}", flush=True)


if __name__ == "__main__":
    main()
