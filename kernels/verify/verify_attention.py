"""Every kernel against its float64 reference on random ragged batches; nothing is timed before this passed.

Tolerances: an output has 11 (fp16) or 8 (bf16) significant bits and weights are rounded to the same type before the
tensor cores, so errors near 2^-11 and 2^-8 of the largest value are expected; 2e-3 and 1e-2 leave about a factor 4
and 2.5.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch

from kernels.launch.attention import contiguous_decode, paged_decode
from kernels.launch.compile import architecture, precompile
from kernels.launch.decode_plan import CTAS_PER_SM, DecodePlan
from kernels.launch.paper_attention import paper_decode
from kernels.launch.prefill_attention import has_wgmma, paged_prefill
from kernels.launch.prefill_tma import BLOCK_SIZES as BLOCK_SIZES_OF_TMA
from kernels.launch.prefill_tma import TmaPlan, constants
from kernels.verify import reference
from kernels.verify.random_batches import Batch, Shape, random_batch, to_extents
from kernels.verify.verify_moves import MOVE_CHECKS

TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1e-2}
HEAD_SIZES = (64, 80, 96, 128, 256)
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 3, 24)
HEADS = ((3, 3), (8, 2), (8, 1), (14, 2), (12, 1), (32, 2))


@dataclass(frozen=True, slots=True)
class Case:
    """One random batch: its shape, a seed, how decode is cut, and the longest context drawn."""

    shape: Shape
    seed: int
    plan: DecodePlan
    longest: int = 16_384


def cases(rounds: int) -> Iterator[Case]:
    """Each round covers head sizes x block sizes x types once; heads and plans take turns."""
    for number, (_, head_size, block_size, dtype) in enumerate(
        product(range(rounds), HEAD_SIZES, BLOCK_SIZES, TOLERANCE)
    ):
        heads, kv_heads = HEADS[number % len(HEADS)]
        num_warps = (2, 4, 8)[number % 3] if head_size <= 128 else 4
        ctas = max(1, CTAS_PER_SM[head_size] * 4 // num_warps)
        plan = DecodePlan(num_warps, ctas, (128, 256, 1024)[number // 3 % 3], wave=number % 5 == 4)
        yield Case(Shape(heads, kv_heads, head_size, block_size, dtype), number, plan)


def variants(rounds: int) -> list[tuple[str, dict[str, int]]]:
    """What `cases` will compile, for a parallel start."""
    found: dict[str, tuple[str, dict[str, int]]] = {}
    for case in cases(rounds):
        s, plan = case.shape, case.plan
        base = {
            "HEAD_SIZE": s.head_size,
            "GROUP": s.num_heads // s.num_kv_heads,
            "BF16": int(s.dtype == torch.bfloat16),
        }
        wanted = [
            ("decode.cu", base | plan.constants | {"PAGED": 1, "BLOCK_SIZE": s.block_size}),
            ("decode.cu", base | plan.constants | {"PAGED": 0, "BLOCK_SIZE": 1}),
            ("prefill.cu", base | {"BLOCK_SIZE": s.block_size}),
            *([("prefill_wgmma.cu", base | {"BLOCK_SIZE": s.block_size})] if has_wgmma(s.head_size) else []),
        ]
        for _, kind, plan in prefill_kinds(s):
            if kind == "tma" and plan:
                wanted.append(("prefill_tma.cu", base | constants(base["GROUP"], s.block_size, plan)))
        if s.block_size & (s.block_size - 1) == 0:
            wanted.append(("paper_decode.cu", base | {"BLOCK_SIZE": s.block_size}))
        found |= {repr(variant): variant for variant in wanted}
    return list(found.values())


def random_lens(rng: np.random.Generator, longest: int) -> list[int]:
    """1 to 6 context lengths, log-uniform in 1..longest, now and then the longest itself or none at all."""
    lens = np.exp(rng.uniform(0, np.log(longest + 1), int(rng.integers(1, 7)))).astype(int).clip(1, longest).tolist()
    if rng.random() < 0.2:
        lens[0] = longest
    return [*lens, 0] if rng.random() < 0.1 else lens


def check_decode(case: Case) -> dict[str, float]:
    """Errors of the three decode kernels on one batch."""
    rng, s, plan = np.random.default_rng(case.seed), case.shape, case.plan
    lens = random_lens(rng, min(case.longest, plan.chunk_tokens * 128))
    batch = random_batch(rng, s, lens)
    want = reference.paged_decode(batch.q, batch.k_cache, batch.v_cache, batch.block_tables, lens)
    k_pool, v_pool, extents = to_extents(batch)
    options = {"max_context_len": max(lens), "plan": plan}
    runs: dict[str, Callable[[torch.Tensor], None]] = {
        "paged_decode": lambda out: paged_decode(out, *_tensors(batch), **options, check_ids=case.seed % 7 == 0),
        "contiguous_decode": lambda out: contiguous_decode(
            out, batch.q, k_pool, v_pool, extents, batch.context_lens, **options
        ),
    }
    if s.block_size & (s.block_size - 1) == 0:
        keys, values = reference.interleave_keys(batch.k_cache), reference.transpose_values(batch.v_cache)
        runs["paper_decode"] = lambda out: paper_decode(
            out, batch.q, keys, values, batch.block_tables, batch.context_lens, max_context_len=max(lens)
        )
    return {name: reference.relative_error(poisoned(batch.q, run), want) for name, run in runs.items()}


def check_prefill(case: Case) -> dict[str, float]:
    """Errors of the prefill kernels with random cached prefixes, some new prompts without any."""
    rng = np.random.default_rng(case.seed + 1_000_000)
    lens = [max(1, length) for length in random_lens(rng, min(case.longest, 4096))]
    news = [int(rng.integers(1, min(length, 400) + 1)) if rng.random() < 0.6 else min(length, 700) for length in lens]
    batch = random_batch(rng, case.shape, lens, num_queries=sum(news))
    starts = torch.from_numpy(np.concatenate([[0], np.cumsum(news)]).astype(np.int32)).cuda()
    tables = batch.block_tables
    want = reference.paged_prefill(batch.q, batch.k_cache, batch.v_cache, tables, news, lens)
    arguments = (batch.q, batch.k_cache, batch.v_cache, tables, starts, batch.context_lens)
    errors = {}
    for name, kind, plan in prefill_kinds(case.shape):
        options = {"max_query_len": max(news), "kind": kind, "plan": plan}
        got = poisoned(batch.q, lambda out, options=options: paged_prefill(out, *arguments, **options))
        errors[f"paged_prefill ({name})"] = reference.relative_error(got, want)
    return errors


def prefill_kinds(shape: Shape) -> list[tuple[str, str, TmaPlan | None]]:
    """Names, kinds and plans of the prefill kernels that run here on this shape."""
    found: list[tuple[str, str, TmaPlan | None]] = [("mma", "mma", None)]
    if has_wgmma(shape.head_size):
        found.append(("wgmma", "wgmma", None))
        if shape.block_size in BLOCK_SIZES_OF_TMA:
            found += [("tma", "tma", TmaPlan(pack=False)), ("tma, packed", "tma", TmaPlan(pack=True))]
    return found


def poisoned(like: torch.Tensor, run: Callable[[torch.Tensor], None]) -> torch.Tensor:
    """The output of `run`, filled with NaN beforehand so that an unwritten element shows."""
    out = torch.full_like(like, float("nan"))
    run(out)
    return out


def verify(rounds: int = 2, report: Callable[[str], None] = print) -> bool:
    """Runs all checks, reports the worst error of each kernel and type, and says whether all are within tolerance."""
    arch = architecture("{}{}".format(*torch.cuda.get_device_capability()))
    precompile(variants(rounds), arch)
    worst: dict[tuple[str, torch.dtype], float] = {}
    count: dict[tuple[str, torch.dtype], int] = {}
    for case in cases(rounds):
        for name, error in (check_decode(case) | check_prefill(case)).items():
            key = (name, case.shape.dtype)
            if error > TOLERANCE[case.shape.dtype]:
                report(f"  {name}: error {error:.2e} on {case}")
            worst[key], count[key] = max(worst.get(key, 0.0), error), count.get(key, 0) + 1
    passed = all(error <= TOLERANCE[dtype] for (_, dtype), error in worst.items())
    for (name, dtype), error in sorted(worst.items(), key=str):
        text = str(dtype).removeprefix("torch.")
        report(
            f"right: {name} {text}: worst error {error:.2e} of {TOLERANCE[dtype]:.0e} on {count[name, dtype]} batches"
        )
    for name, check in MOVE_CHECKS.items():
        exact = all(check(np.random.default_rng(seed)) for seed in range(20))
        report(f"right: {name}: {'bit for bit' if exact else 'WRONG'} on 20 random cases")
        passed &= exact
    return passed


def _tensors(batch: Batch) -> tuple[torch.Tensor, ...]:
    return batch.q, batch.k_cache, batch.v_cache, batch.block_tables, batch.context_lens
