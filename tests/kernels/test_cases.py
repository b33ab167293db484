"""The batches on which kernels are checked: their grid, and the variants that they compile."""

from collections import Counter
from itertools import product

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch

from testbed.kernels.launch.attention import ENDLESS, FP8_SIZES, HEAD_SIZES
from testbed.kernels.launch.decode_plan import CTAS_PER_SM, TILE, DecodePlan
from testbed.kernels.launch.prefill_attention import BLOCK_SIZES
from testbed.kernels.verify import verify_attention
from testbed.kernels.verify.reference import PLAIN, Form, Shape
from testbed.kernels.verify.verify_attention import HEADS, SMALL_CASES, cases, variants

GRID = list(
    product(HEAD_SIZES, (*BLOCK_SIZES, 3, 24), (torch.float16, torch.bfloat16))
)  # head size, block size, type
EVERY_CASE = list(cases())


@pytest.fixture(autouse=True)
def on_hopper(monkeypatch):
    """On any machine, tests see the kernels of a GPU with warpgroup products."""
    monkeypatch.setattr(verify_attention, "has_wgmma", lambda head_size: head_size in (64, 128))


def test_a_round_covers_head_sizes_block_sizes_and_types_once():
    shapes = [case.shape for case in EVERY_CASE[:110]]
    assert [(s.head_size, s.block_size, s.dtype) for s in shapes] == GRID
    assert len(GRID) == 110


def test_rounds_differ_in_heads_plans_and_seeds():
    first, second = EVERY_CASE[:110], EVERY_CASE[110:]
    assert [case.seed for case in EVERY_CASE] == list(range(220))
    for case, other in zip(first, second, strict=True):
        assert case.shape.head_size == other.shape.head_size
        assert case.shape.num_heads != other.shape.num_heads
    assert {(c.shape.num_heads, c.shape.num_kv_heads) for c in EVERY_CASE} == set(HEADS)


def test_plans_of_the_cases_fit_the_kernel():
    for case in (*EVERY_CASE, *SMALL_CASES):
        plan = case.plan
        assert plan.chunk_tokens % (TILE * plan.num_warps) == 0
        resident_warps = plan.num_warps * plan.ctas_per_sm
        assert resident_warps <= 4 * CTAS_PER_SM[case.shape.head_size]
    plans = [case.plan for case in EVERY_CASE]
    assert {plan.num_warps for plan in plans} == {2, 4, 8}
    assert {plan.chunk_tokens for plan in plans} == {128, 256, 1024}
    assert sum(plan.wave for plan in plans) == 220 / 5


def test_every_case_has_a_plain_form_and_another_that_its_kernels_read():
    counts = Counter()
    for case in EVERY_CASE:
        plain, other = case.forms
        assert plain == PLAIN
        assert other != PLAIN
        assert not other.fp8 or case.shape.head_size in FP8_SIZES
        assert other.window is None or 1 <= other.window <= 2 * 4096
        counts[other.fp8, other.window is not None] += 1
    assert all(counts[kind] >= 30 for kind in ((True, False), (False, True), (True, True)))
    windows = [case.forms[1].window for case in EVERY_CASE if case.forms[1].window]
    assert min(windows) < 16
    assert max(windows) > 2000


def names(shape, form=PLAIN):
    """Source and layout of each variant of a shape, in order."""
    return [
        (source, "blocks" if defines.get("PAGED", 1) else "extents")
        for source, defines in variants(shape, DecodePlan(4, 3, 64), form)
    ]


def test_variants_of_a_shape_that_all_kernels_read():
    shape = Shape(32, 8, 128, 16, torch.float16)
    assert names(shape) == [
        ("decode.cu", "blocks"),  # with and without a shared prefix
        ("decode.cu", "blocks"),
        ("prefill_tma.cu", "blocks"),  # for a shared prefix
        ("prefill.cu", "blocks"),
        ("prefill_tma.cu", "blocks"),  # for long prompts, and for short ones
        ("prefill_tma.cu", "blocks"),
        ("paper_decode.cu", "blocks"),
        ("decode.cu", "extents"),
        ("prefill.cu", "extents"),
        ("prefill_tma.cu", "extents"),
        ("prefill_tma.cu", "extents"),
    ]
    short_packed_prefix = [
        (defines["SHORT"], defines["PACK"], defines["PREFIX"])
        for source, defines in variants(shape, DecodePlan(4, 3, 64))
        if source == "prefill_tma.cu"
    ]
    assert short_packed_prefix == [(0, 1, 1), (0, 0, 0), (1, 1, 0), (0, 0, 0), (1, 1, 0)]


@pytest.mark.parametrize(
    ("shape", "form", "missing"),
    [
        (Shape(32, 8, 80, 16), PLAIN, {"prefill_tma.cu"}),  # 80 values are no swizzled row
        (Shape(32, 8, 128, 16), Form(True), {"prefill_tma.cu", "paper_decode.cu"}),
        (Shape(32, 8, 128, 16), Form(False, 9), {"paper_decode.cu"}),
        (Shape(32, 8, 80, 24), PLAIN, {"prefill_tma.cu", "paper_decode.cu"}),
    ],
)
def test_kernels_that_do_not_read_a_form_are_left_out(shape, form, missing):
    every = {"decode.cu", "prefill.cu", "prefill_tma.cu", "paper_decode.cu"}
    assert {source for source, _ in names(shape, form)} == every - missing


@pytest.mark.parametrize("case", SMALL_CASES, ids=str)
def test_constants_of_variants_are_those_of_the_case(case):
    shape = case.shape
    for form in case.forms:
        for source, defines in variants(shape, case.plan, form):
            assert defines["HEAD_SIZE"] == shape.head_size
            assert defines["GROUP"] == shape.num_heads // shape.num_kv_heads
            assert defines["BF16"] == (shape.dtype == torch.bfloat16)
            if source == "paper_decode.cu":
                assert defines["BLOCK_SIZE"] == shape.block_size
                continue
            in_blocks = shape.block_size if defines["PAGED"] else ENDLESS
            assert defines["BLOCK_SIZE"] == in_blocks
            assert defines["FP8"] == form.fp8
            assert defines["WINDOWED"] == (form.window is not None)
            if source == "decode.cu":
                assert case.plan.constants.items() <= defines.items()


def test_small_cases_cover_head_sizes_types_waves_and_odd_blocks():
    assert {case.shape.head_size for case in SMALL_CASES} == set(HEAD_SIZES)
    assert {case.shape.dtype for case in SMALL_CASES} == {torch.float16, torch.bfloat16}
    assert any(case.plan.wave for case in SMALL_CASES)
    assert any(case.shape.block_size not in BLOCK_SIZES for case in SMALL_CASES)
