"""How a decode launch is cut: every token read once, thread blocks that fit, chunks that fill."""

import re
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="torch is not installed")

from testbed.kernels.launch.compile import source_text
from testbed.kernels.launch.decode_plan import (
    CTAS_PER_SM,
    MAX_CHUNKS,
    MAX_WAVE,
    TILE,
    DecodePlan,
    plan_decode,
)

NUM_SMS = 132  # of an H100 or H200

BATCHES = {
    "num_seqs": st.integers(1, 300),
    "groups": st.sampled_from([1, 2, 4, 8, 40]),
    "head_size": st.sampled_from(sorted(CTAS_PER_SM)),
    "longest": st.integers(1, 70_000),
    "num_sms": st.sampled_from([78, 108, 132]),
    "fp8": st.booleans(),
    "window": st.just(0) | st.integers(1, 3000) | st.just(100_000),
}


@pytest.mark.parametrize(("name", "value"), [("MAX_CHUNKS", MAX_CHUNKS), ("TILE", TILE)])
def test_limits_are_those_of_the_kernel(name, value):
    in_source = re.search(rf"#define {name} (\d+)", source_text("decode.cu"))
    assert int(in_source[1]) == value


def chunks_of(plan, num_chunks, context_len, window):
    """Tokens [first, end) of each chunk of a context, as work_of in decode_work.cuh cuts it."""
    start = max(0, context_len - window) if window else 0
    first_tile_token = start // TILE * TILE
    for chunk in range(num_chunks):
        first = first_tile_token + chunk * plan.chunk_tokens
        end = min(first + plan.chunk_tokens, context_len)
        yield max(first, start), end


@settings(max_examples=500)
@given(**BATCHES, share=st.floats(0, 1))
def test_every_token_that_is_read_is_in_one_chunk(
    num_seqs, groups, head_size, longest, num_sms, fp8, window, share
):
    """A launch has as many chunks as its longest context needs; a shorter one leaves some empty."""
    plan = plan_decode(num_seqs, groups, head_size, longest, num_sms, fp8, window)
    num_chunks = plan.num_chunks(longest, window)
    for context_len in {longest, max(1, round(longest * share))}:
        read = []
        for first, end in chunks_of(plan, num_chunks, context_len, window):
            read += range(first, end)
        assert read == list(range(max(0, context_len - window) if window else 0, context_len))


@settings(max_examples=500)
@given(**BATCHES)
def test_plans_fit_the_kernel(num_seqs, groups, head_size, longest, num_sms, fp8, window):
    plan = plan_decode(num_seqs, groups, head_size, longest, num_sms, fp8, window)
    assert plan.num_warps in (2, 4, 8)
    tile_of_window = TILE if window else 0
    assert (plan.chunk_tokens - tile_of_window) % (TILE * plan.num_warps) == 0, "whole turns"
    assert 1 <= plan.num_chunks(longest, window) <= MAX_CHUNKS
    warps_without_spills = 4 * CTAS_PER_SM[head_size]
    assert plan.num_warps * plan.ctas_per_sm <= warps_without_spills
    if plan.wave:
        assert num_seqs <= min(MAX_WAVE, num_sms * plan.ctas_per_sm // groups)


@settings(max_examples=500)
@given(**BATCHES)
def test_chunks_are_even(num_seqs, groups, head_size, longest, num_sms, fp8, window):
    """One chunk less would be too long: no chunk has twice the mean, or a turn of warps more."""
    plan = plan_decode(num_seqs, groups, head_size, longest, num_sms, fp8, window)
    num_chunks = plan.num_chunks(longest, window)
    tokens_read = min(longest, window + TILE - 1) if window else longest
    turn = TILE * plan.num_warps + (TILE if window else 0)
    assert min(plan.chunk_tokens, tokens_read) <= max(2 * tokens_read / num_chunks, turn)


@pytest.mark.parametrize("longest", [4096, 16_384, 65_536])
@pytest.mark.parametrize(("num_seqs", "groups"), list(product((1, 2, 4, 8), (1, 2, 8))))
def test_few_long_contexts_fill_the_gpu(num_seqs, groups, longest):
    """At least half of the multiprocessors get work, as far as chunks of 256 tokens suffice."""
    plan = plan_decode(num_seqs, groups, 128, longest, NUM_SMS)
    thread_blocks = num_seqs * groups * plan.num_chunks(longest, 0)
    if plan.wave:
        thread_blocks = NUM_SMS
    assert thread_blocks >= min(NUM_SMS / 2, num_seqs * groups * longest / 256)


@pytest.mark.parametrize("longest", [1, 16, 255, 1024])
@pytest.mark.parametrize("num_seqs", [132, 200, 1000])
def test_short_contexts_that_fill_the_gpu_are_not_split(num_seqs, longest):
    for head_size in (80, 96, 128, 256):
        plan = plan_decode(num_seqs, 1, head_size, longest, NUM_SMS)
        assert plan.num_chunks(longest, 0) == 1, head_size


# (sequences, groups of heads, head size, longest context), at both ends of each rule.
@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        # Heads of 64, at most two rows a multiprocessor: 8 warps.
        ((1, 1, 64, 1), DecodePlan(8, 2, 128)),
        ((8, 8, 64, 1024), DecodePlan(8, 2, 1024)),  # 64 rows are a third of 132: one chunk
        ((5, 8, 64, 1024), DecodePlan(8, 2, 256)),  # 40 rows are less: 6 chunks of 171 tokens
        ((8, 8, 64, 1025), DecodePlan(8, 2, 384)),  # beyond 1,024 tokens: 4 chunks of 257
        ((1, 8, 64, 65_536), DecodePlan(8, 2, 1024)),  # at most 64 chunks
        ((1, 8, 64, 65_537), DecodePlan(8, 2, 1152)),
        ((1, 1, 64, 1024), DecodePlan(8, 2, 128)),  # at least a tile for each warp
        ((264, 1, 64, 4096), DecodePlan(8, 2, 1024)),
        ((265, 1, 64, 4096), DecodePlan(4, 5, 512)),  # 9 chunks of 456, but at least 512 tokens
        # Few rows: 8 warps, half as many thread blocks.
        ((1, 8, 128, 16_384), DecodePlan(8, 1, 1024)),
        ((33, 1, 128, 4096), DecodePlan(8, 1, 512)),  # a quarter of 132: 8 chunks
        ((34, 1, 128, 4096), DecodePlan(4, 3, 384)),
        ((66, 1, 128, 512), DecodePlan(8, 1, 256)),  # half of 132, up to 512 tokens
        ((66, 1, 128, 513), DecodePlan(4, 3, 256)),
        ((1, 8, 256, 16_384), DecodePlan(4, 2, 512)),  # never with heads of 256
        # Two chunks of each row nearly fill a wave of 132: 120 to 132, heads of 128.
        ((8, 8, 128, 8192), DecodePlan(8, 1, 512, wave=True)),
        ((8, 8, 128, 1024), DecodePlan(4, 3, 256)),  # not up to 1,024 tokens
        ((32, 2, 128, 1025), DecodePlan(8, 1, 256, wave=True)),
        ((11, 6, 128, 2048), DecodePlan(8, 1, 256, wave=True)),  # exactly 132
        ((17, 4, 128, 2048), DecodePlan(4, 3, 256)),  # 136: more than a wave
        ((30, 2, 128, 2048), DecodePlan(8, 1, 256, wave=True)),
        ((29, 2, 128, 2048), DecodePlan(4, 3, 256)),  # 116: less than nine tenths
        ((33, 2, 128, 2048), DecodePlan(4, 3, 256)),  # at most 32 sequences
        ((8, 8, 96, 8192), DecodePlan(4, 4, 1024)),
        # Rows that fill the GPU.
        ((132, 1, 128, 1024), DecodePlan(4, 3, 1024)),
        ((131, 1, 128, 1024), DecodePlan(4, 3, 256)),
        ((132, 1, 128, 8192), DecodePlan(4, 3, 960)),  # 9 chunks of 911 tokens in 3 waves
        ((1980, 1, 128, 8192), DecodePlan(4, 3, 2048)),  # five times all resident thread blocks
        ((1979, 1, 128, 8192), DecodePlan(4, 3, 1024)),  # 8 chunks
        # Thread blocks of 2 warps end more evenly.
        ((792, 1, 128, 256), DecodePlan(2, 6, 256)),
        ((791, 1, 128, 256), DecodePlan(4, 3, 256)),
        ((1188, 1, 128, 1024), DecodePlan(2, 6, 1024)),
        ((1187, 1, 128, 1024), DecodePlan(4, 3, 1024)),
        # At most 128 chunks.
        ((1, 1, 128, 65_536), DecodePlan(8, 1, 512)),
        ((1, 1, 128, 65_537), DecodePlan(8, 1, 640)),
        # Thread blocks of 4 warps that are resident, by head size.
        ((132, 1, 80, 8192), DecodePlan(4, 4, 1024)),  # 8 chunks in two waves of 528
        ((132, 1, 96, 8192), DecodePlan(4, 4, 1024)),
        ((132, 1, 256, 8192), DecodePlan(4, 2, 1024)),  # in four of 264
        ((265, 1, 64, 1024), DecodePlan(4, 5, 1024)),
    ],
)
def test_plans_follow_the_measured_rules(batch, expected):
    assert plan_decode(*batch, NUM_SMS) == expected


def test_chunks_of_one_byte_values_are_longer():
    """A token is read in half the time."""
    assert plan_decode(132, 1, 128, 8192, NUM_SMS, fp8=True) == DecodePlan(4, 3, 2048)
    assert plan_decode(1188, 1, 128, 1024, NUM_SMS, fp8=True) == DecodePlan(4, 3, 1024)


@pytest.mark.parametrize("window", [100, 1000])
def test_a_window_is_planned_as_a_context_of_its_length(window):
    plan = plan_decode(4, 8, 128, 50_000, NUM_SMS, window=window)
    whole = plan_decode(4, 8, 128, window, NUM_SMS)
    assert plan == DecodePlan(whole.num_warps, whole.ctas_per_sm, whole.chunk_tokens + TILE)
    assert plan.num_chunks(50_000, window) == whole.num_chunks(window, 0)


def test_the_shape_of_a_plan_is_compiled_in():
    assert DecodePlan(8, 2, 128).constants == {"NUM_WARPS": 8, "CTAS_PER_SM": 2, "WAVE": 0}
    assert DecodePlan(4, 3, 256, wave=True).constants["WAVE"] == 1
