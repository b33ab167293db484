"""Checks every kernel against its float64 reference on random ragged batches; timings require that
it passes.

Tolerances: an output has 11 (fp16) or 8 (bf16) significant bits and weights are rounded to the same
type before the tensor cores, so errors near 2^-11 and 2^-8 of the largest value are expected; 2e-3
and 1e-2 leave about a factor 4 and 2.5. Caches of e4m3 are compared with the values that they
contain, so that the same tolerances hold.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product

import numpy as np
import torch

from testbed.kernels.launch.attention import (
    ENDLESS,
    FP8_SIZES,
    HEAD_SIZES,
    Shapes,
    decode,
    paper_decode,
    workspace_of_rows,
)
from testbed.kernels.launch.compile import multiprocessors, precompile
from testbed.kernels.launch.decode_plan import (
    CTAS_PER_SM,
    MAX_CHUNKS,
    MAX_PREFIX_CHUNKS,
    TILE,
    DecodePlan,
)
from testbed.kernels.launch.prefill_attention import BLOCK_SIZES as BLOCK_SIZES_OF_TMA
from testbed.kernels.launch.prefill_attention import (
    constants,
    has_wgmma,
    prefill,
    prefix_attention,
)
from testbed.kernels.verify import reference
from testbed.kernels.verify.reference import PLAIN, Batch, Form, Shape, random_batch, to_extents
from testbed.kernels.verify.verify_moves import MOVE_CHECKS

TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1e-2}
BLOCK_SIZES = (*BLOCK_SIZES_OF_TMA, 3, 24)
Run = Callable[[torch.Tensor], None]  # fills an output
HEADS = ((3, 3), (8, 2), (8, 1), (14, 2), (12, 1), (32, 2))


@dataclass(frozen=True, slots=True)
class Case:
    """One random batch: its shape, a seed, the decode plan, and the longest context drawn."""

    shape: Shape
    seed: int
    plan: DecodePlan
    longest: int = 16_384

    @property
    def forms(self) -> list[Form]:
        """The plain cache, and one other form, which alternates with the seed; windows are
        log-uniform.
        """
        window = int(
            np.exp(np.random.default_rng(self.seed).uniform(0, np.log(2 * min(self.longest, 4096))))
        )
        windowed = Form(window=window)
        other = [Form(fp8=True), windowed, Form(fp8=True, window=window)][self.seed % 3]
        return [PLAIN, other if self.shape.head_size in FP8_SIZES else windowed]


ROUNDS = 2
SMALL_CASES = (
    Case(shape=Shape(3, 3, 64, 16, torch.float16), seed=1, plan=DecodePlan(4, 3, 64), longest=200),
    Case(shape=Shape(4, 1, 128, 1, torch.bfloat16), seed=2, plan=DecodePlan(4, 3, 64), longest=150),
    Case(shape=Shape(12, 1, 80, 8, torch.float16), seed=3, plan=DecodePlan(2, 4, 128), longest=300),
    Case(
        shape=Shape(2, 2, 96, 32, torch.bfloat16), seed=4, plan=DecodePlan(8, 1, 128), longest=300
    ),
    Case(shape=Shape(4, 2, 256, 3, torch.float16), seed=5, plan=DecodePlan(4, 2, 64), longest=130),
    Case(shape=Shape(8, 2, 128, 16, torch.float16), seed=6, plan=DecodePlan(4, 3, 64), longest=300),
    Case(
        shape=Shape(16, 1, 128, 8, torch.float16),
        seed=7,
        plan=DecodePlan(8, 1, 128, wave=True),
        longest=900,
    ),
    Case(
        shape=Shape(12, 3, 128, 16, torch.float16),
        seed=8,
        plan=DecodePlan(4, 3, 64, shares=True),
        longest=900,
    ),
    Case(
        shape=Shape(14, 2, 64, 16, torch.float16), seed=9, plan=DecodePlan(16, 1, 256), longest=256
    ),
)


def cases() -> Iterator[Case]:
    """Head sizes x block sizes x types, in rounds; heads and plans alternate."""
    for number, (_, head_size, block_size, dtype) in enumerate(
        product(range(ROUNDS), HEAD_SIZES, BLOCK_SIZES, TOLERANCE)
    ):
        heads, kv_heads = HEADS[number % len(HEADS)]
        num_warps = (2, 4, 8)[number % 3] if head_size <= 128 else 4
        ctas = max(1, CTAS_PER_SM[head_size] * 4 // num_warps)
        kind = {"wave": number % 5 == 4, "shares": number % 5 == 3}
        plan = DecodePlan(num_warps, ctas, (128, 256, 1024)[number // 3 % 3], **kind)
        yield Case(Shape(heads, kv_heads, head_size, block_size, dtype), number, plan)


def variants(
    shape: Shape, plan: DecodePlan, form: Form = PLAIN
) -> list[tuple[str, dict[str, int]]]:
    """All attention kernels of a shape and form, for parallel compilation."""
    heads, sources = (shape.num_heads, shape.num_kv_heads, shape.head_size), []
    for size in (shape.block_size, ENDLESS):
        bf16 = int(shape.dtype == torch.bfloat16)
        here = Shapes(0, *heads, 0, size, 0, bf16, int(form.fp8), form.window or 0).defines
        shares = in_shared_form(shape, size, form)
        for prefixed in range(1 + shares):
            sources.append(("decode.cu", here | plan.constants | {"PREFIXED": prefixed}))
        if shares:
            chosen = constants(here["GROUP"], size, short=False, prefix=True)
            sources.append(("prefill_tma.cu", here | chosen))
        for kind, short in prefill_kinds(shape.head_size, size, form).values():
            if kind == "tma":
                sources.append(("prefill_tma.cu", here | constants(here["GROUP"], size, short)))
            else:
                sources.append(("prefill.cu", here))
        if size != ENDLESS and in_paper_layout(shape, form):
            sources.append(
                (
                    "paper_decode.cu",
                    {name: here[name] for name in ("HEAD_SIZE", "GROUP", "BLOCK_SIZE", "BF16")},
                )
            )
    return sources


def in_shared_form(shape: Shape, block_size: int, form: Form) -> bool:
    """True if decodes of this shape and form can attend to a shared prefix once for all."""
    whole = block_size % TILE == 0 or TILE % block_size == 0
    return (
        form == PLAIN
        and block_size != ENDLESS
        and whole
        and "tma" in prefill_kinds(shape.head_size, block_size)
    )


def in_paper_layout(shape: Shape, form: Form) -> bool:
    """True if the paper's kernel reads this shape and form."""
    return shape.block_size & (shape.block_size - 1) == 0 and form == PLAIN


def random_lens(rng: np.random.Generator, longest: int) -> list[int]:
    """1 to 6 context lengths, log-uniform in 1..longest, sometimes the longest or 0."""
    lens = (
        np.exp(rng.uniform(0, np.log(longest + 1), int(rng.integers(1, 7))))
        .astype(int)
        .clip(1, longest)
        .tolist()
    )
    if rng.random() < 0.2:
        lens[0] = longest
    return [*lens, 0] if rng.random() < 0.1 else lens


def check_forms(case: Case) -> dict[str, float]:
    """Errors of all attention kernels on the case's batches."""
    errors_of = dict[str, float]()
    for form in case.forms:
        errors_of |= check_decode(case, form)
        errors_of |= check_prefill(case, form)
    if in_shared_form(case.shape, case.shape.block_size, PLAIN):
        errors_of |= check_shared(case)
    return errors_of


def layouts(batch: Batch, form: Form, news: Sequence[int]) -> dict[str, tuple[torch.Tensor, ...]]:
    """K cache, V cache and places of a batch in blocks and in extents."""
    read = batch.without_unread(form.window, news)
    return {
        "paged": (read.k_cache, read.v_cache, read.block_tables),
        "contiguous": to_extents(batch),
    }


def check_decode(case: Case, form: Form) -> dict[str, float]:
    """Errors of the decode kernels on one batch."""
    rng, s, plan = np.random.default_rng(case.seed), case.shape, case.plan
    lens = random_lens(rng, min(case.longest, plan.chunk_tokens * 128))
    batch = random_batch(rng, s, lens)
    batch = batch.quantized(rng) if form.fp8 else batch
    ones = [1] * len(lens)
    want = reference.paged_prefill(
        batch.q, *batch.values, batch.block_tables, ones, lens, form.window
    )
    options = {
        "max_context_len": max(lens),
        "plan": plan,
        "kv_scales": batch.kv_scales,
        "window": form.window,
    }

    def run(caches: tuple[torch.Tensor, ...], out: torch.Tensor) -> None:
        decode(out, batch.q, *caches, batch.context_lens, **options)

    runs: dict[str, Run] = {
        f"{name}_decode{form}": partial(run, caches)
        for name, caches in layouts(batch, form, ones).items()
    }
    if in_paper_layout(s, form):
        caches = reference.paper_layout(batch.k_cache, batch.v_cache)
        runs["paper_decode"] = lambda out: paper_decode(
            out, batch.q, *caches, batch.block_tables, batch.context_lens, max_context_len=max(lens)
        )
    return errors(batch.q, want, runs)


def check_shared(case: Case) -> dict[str, float]:
    """Errors of decodes of which runs have the same first blocks, which are attended to once."""
    rng, s, plan = np.random.default_rng(case.seed + 2_000_000), case.shape, case.plan
    lens = [max(1, n) for n in random_lens(rng, min(case.longest, plan.chunk_tokens * 128))]
    batch = random_batch(rng, s, lens)
    inner = np.flatnonzero(rng.random(len(lens) - 1) < 0.3) + 1
    runs, prefixes = [0, *inner.tolist(), len(lens), len(lens)], np.zeros(len(lens), np.int32)
    for first, last in pairwise(runs[:-1]):
        step = max(TILE, s.block_size)
        most = (min(lens[first:last]) - 1) // step
        prefixes[first:last] = tokens = step * int(rng.integers(0, most + 1))
        blocks = tokens // s.block_size
        batch.block_tables[first:last, :blocks] = batch.block_tables[first, :blocks].clone()
    ones, own = [1] * len(lens), max(lens) - int(prefixes.min())
    want = reference.paged_prefill(batch.q, *batch.values, batch.block_tables, ones, lens)
    caches = layouts(batch, PLAIN, ones)["paged"]
    places = reference.on_device(np.array(runs, np.int32)), reference.on_device(prefixes)
    rows = len(lens) * s.num_heads * (MAX_CHUNKS + MAX_PREFIX_CHUNKS)
    if plan.shares:  # two of each thread block, of up to 8 heads each
        rows += 2 * 8 * plan.ctas_per_sm * multiprocessors()

    def run(out: torch.Tensor) -> None:
        workspace = workspace_of_rows(batch.q, rows)
        options = {"workspace": workspace, "max_run": len(lens)}
        prefix_attention(batch.q, *caches, *places, **options)
        options = {"workspace": workspace, "max_context_len": own, "plan": plan}
        decode(out, batch.q, *caches, batch.context_lens, **options, prefixes=places[1])

    return errors(batch.q, want, {"shared_prefix_decode": run})


def check_prefill(case: Case, form: Form) -> dict[str, float]:
    """Errors of the prefill kernels with random cached prefixes, some new prompts without any."""
    rng, s = np.random.default_rng(case.seed + 1_000_000), case.shape
    lens = [max(1, length) for length in random_lens(rng, min(case.longest, 4096))]
    news = [
        int(rng.integers(1, min(length, 400) + 1)) if rng.random() < 0.6 else min(length, 700)
        for length in lens
    ]
    batch = random_batch(rng, s, lens, num_queries=sum(news))
    batch = batch.quantized(rng) if form.fp8 else batch
    starts = reference.on_device(np.cumsum([0, *news]).astype(np.int32))
    want = reference.paged_prefill(
        batch.q, *batch.values, batch.block_tables, news, lens, form.window
    )

    def run(caches: tuple[torch.Tensor, ...], kind: str, short: bool, out: torch.Tensor) -> None:
        options = {"max_query_len": max(news), "kind": kind, "short": short}
        prefill(
            out,
            batch.q,
            *caches,
            starts,
            batch.context_lens,
            **options,
            kv_scales=batch.kv_scales,
            window=form.window,
        )

    runs: dict[str, Run] = {}
    for name, caches in layouts(batch, form, news).items():
        block_size = s.block_size if name == "paged" else ENDLESS
        for which, kind in prefill_kinds(s.head_size, block_size, form).items():
            runs[f"{name}_prefill ({which}){form}"] = partial(run, caches, *kind)
    return errors(batch.q, want, runs)


def prefill_kinds(
    head_size: int, block_size: int, form: Form = PLAIN
) -> dict[str, tuple[str, bool]]:
    """The prefill kernels that run here on blocks of this size, or on extents: kind, and whether it
    runs in the variant for short prompts.
    """
    kinds = {"mma": ("mma", False)}
    if has_wgmma(head_size) and not form.fp8 and block_size in (*BLOCK_SIZES_OF_TMA, ENDLESS):
        kinds |= {"tma": ("tma", False), "tma, short": ("tma", True)}
    return kinds


def errors(like: torch.Tensor, want: torch.Tensor, runs: Mapping[str, Run]) -> dict[str, float]:
    """Errors of the outputs of `runs`, of the shape of `like`, against the reference's.

    The outputs are first filled with NaN, so that an unwritten element is detected.
    """
    errors_of = {}
    for name, run in runs.items():
        out = torch.full_like(like, float("nan"))
        run(out)
        errors_of[name] = reference.relative_error(out, want)
    return errors_of


def verify(report: Callable[[str], None] = print) -> bool:
    """Run all checks, report the worst error of each kernel and type; returns whether all are
    within tolerance.
    """
    all_cases = list(cases())
    forms = [(case, form) for case in all_cases for form in case.forms]
    precompile(
        [variant for case, form in forms for variant in variants(case.shape, case.plan, form)]
    )
    errors_of = defaultdict[tuple[str, torch.dtype], list[float]](list)
    for case in all_cases:
        for name, error in check_forms(case).items():
            if error > TOLERANCE[case.shape.dtype]:
                report(f"  {name}: error {error:.2e} on {case}")
            errors_of[name, case.shape.dtype].append(error)
    passed = all(
        max(all_errors) <= TOLERANCE[dtype] for (_, dtype), all_errors in errors_of.items()
    )
    for (name, dtype), all_errors in sorted(errors_of.items(), key=lambda item: str(item[0])):
        text = f"{name} {str(dtype).removeprefix('torch.')}: worst error {max(all_errors):.2e}"
        report(f"right: {text} of {TOLERANCE[dtype]:.0e} on {len(all_errors)} batches")
    for name, check in MOVE_CHECKS.items():
        exact = all(check(np.random.default_rng(seed)) for seed in range(20))
        report(f"right: {name}: {'bit for bit' if exact else 'WRONG'} on 20 random cases")
        passed &= exact
    return passed
