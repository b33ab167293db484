"""The cut of a decode launch: every token read once, thread blocks that fit, chunks that fill."""

import re
from functools import partial
from itertools import product

import pytest
from depth import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="torch is not installed")

from testbed.kernels.launch.compile import source_text
from testbed.kernels.launch.decode_plan import (
    CTAS_PER_SM,
    MAX_CHUNKS,
    MAX_WAVE,
    MOST_SHARES,
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


@pytest.mark.parametrize(
    ("name", "value"), [("MAX_CHUNKS", MAX_CHUNKS), ("TILE", TILE), ("MOST_SHARES", MOST_SHARES)]
)
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


@settings(max_examples=examples(500))
@given(**BATCHES, share=st.floats(0, 1))
def test_every_token_that_is_read_is_in_one_chunk(
    num_seqs, groups, head_size, longest, num_sms, fp8, window, share
):
    """A launch has as many chunks as its longest context needs; a shorter one leaves some empty."""
    plan = plan_decode(num_seqs, groups, head_size, longest, num_sms, fp8, window)
    assume(not plan.shares)  # which the device cuts: test_emulated_kernels.py
    num_chunks = plan.num_chunks(longest, window)
    for context_len in {longest, max(1, round(longest * share))}:
        read = []
        for first, end in chunks_of(plan, num_chunks, context_len, window):
            read += range(first, end)
        assert read == list(range(max(0, context_len - window) if window else 0, context_len))


@settings(max_examples=examples(500))
@given(**BATCHES)
def test_plans_fit_the_kernel(num_seqs, groups, head_size, longest, num_sms, fp8, window):
    plan = plan_decode(num_seqs, groups, head_size, longest, num_sms, fp8, window)
    assert plan.num_warps in (2, 4, 8, 16)
    tile_of_window = TILE if window else 0
    assert (plan.chunk_tokens - tile_of_window) % (TILE * plan.num_warps) == 0, "whole turns"
    assert 1 <= plan.num_chunks(longest, window) <= MAX_CHUNKS
    warps_without_spills = 4 * CTAS_PER_SM[head_size]
    assert plan.num_warps * plan.ctas_per_sm <= warps_without_spills
    if plan.wave:
        assert num_seqs <= min(MAX_WAVE, num_sms * plan.ctas_per_sm // groups)


@settings(max_examples=examples(500))
@given(**BATCHES)
def test_chunks_are_even(num_seqs, groups, head_size, longest, num_sms, fp8, window):
    """One chunk less would be too long: no chunk has twice the mean, or a turn of warps more."""
    plan = plan_decode(num_seqs, groups, head_size, longest, num_sms, fp8, window)
    assume(not plan.shares)
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


def planned(num_seqs, *, groups=1, head_size=128, longest):
    """The plan on an H100 for sequences of up to `longest` tokens; groups: of heads."""
    return plan_decode(num_seqs, groups, head_size, longest, NUM_SMS)


def eight_warps(chunk_tokens, *, ctas_per_sm=1, wave=False):
    return DecodePlan(8, ctas_per_sm, chunk_tokens, wave)


def four_warps(chunk_tokens, *, ctas_per_sm=3):
    return DecodePlan(4, ctas_per_sm, chunk_tokens)


# The rules below were measured; each is asked at both of its ends.


def test_heads_of_64_take_eight_warps_up_to_two_rows_a_multiprocessor():
    eight = partial(eight_warps, ctas_per_sm=2)
    assert planned(131, head_size=64, longest=4096) == eight(1024)
    assert planned(264, head_size=64, longest=1024) == eight(1024)
    # 9 chunks of 456, but at least 512 tokens
    assert planned(265, head_size=64, longest=4096) == four_warps(512, ctas_per_sm=5)


def test_chunks_of_heads_of_64_follow_rows_and_contexts():
    eight = partial(eight_warps, ctas_per_sm=2)
    # At least a tile for each warp
    assert planned(1, head_size=64, longest=1) == eight(128)
    assert planned(1, head_size=64, longest=1024) == eight(128)
    # 64 rows are a third of 132: one chunk; 40 rows are less: 6 chunks of 171 tokens
    assert planned(8, groups=8, head_size=64, longest=1024) == eight(1024)
    assert planned(5, groups=8, head_size=64, longest=1024) == eight(256)
    # Up to 256 tokens a tile for each of 16 warps, of fewer rows than that
    sixteen = DecodePlan(16, 1, 256)
    assert planned(1, head_size=64, longest=129) == sixteen
    assert planned(43, head_size=64, longest=256) == sixteen
    assert planned(44, head_size=64, longest=256) == eight(256)
    assert planned(43, head_size=64, longest=257) == eight(128)
    # Beyond 1,024 tokens: 4 chunks of 257
    assert planned(8, groups=8, head_size=64, longest=1025) == eight(384)


def test_few_rows_take_eight_warps_and_half_as_many_thread_blocks():
    assert planned(1, groups=8, longest=16_384) == eight_warps(1024)
    # Rows of a quarter of 132: 8 chunks
    assert planned(33, longest=4096) == eight_warps(512)
    assert planned(34, longest=4096) == four_warps(384)
    # Up to 512 tokens rows of half of 132
    assert planned(66, longest=512) == eight_warps(256)
    assert planned(66, longest=513) == four_warps(256)
    # Never with heads of 256
    assert planned(1, groups=8, head_size=256, longest=16_384) == four_warps(512, ctas_per_sm=2)


def test_two_chunks_of_each_row_that_nearly_fill_a_wave_are_one_wave():
    assert planned(8, groups=8, longest=8192) == eight_warps(512, wave=True)
    # Beyond 1,024 tokens only
    assert planned(8, groups=8, longest=1024) == four_warps(256)
    assert planned(32, groups=2, longest=1025) == eight_warps(256, wave=True)
    # Exactly 132 chunks; 136 are more than a wave
    assert planned(11, groups=6, longest=2048) == eight_warps(256, wave=True)
    assert planned(17, groups=4, longest=2048) == four_warps(256)
    # 120 chunks; 116 are less than nine tenths
    assert planned(30, groups=2, longest=2048) == eight_warps(256, wave=True)
    assert planned(29, groups=2, longest=2048) == four_warps(256)
    # At most 32 sequences
    assert planned(33, groups=2, longest=2048) == four_warps(256)
    # Heads of 128 only
    assert planned(8, groups=8, head_size=96, longest=8192) == four_warps(1024, ctas_per_sm=4)


def test_rows_that_fill_the_gpu_have_few_chunks():
    assert planned(132, longest=1024) == four_warps(1024)
    assert planned(131, longest=1024) == four_warps(256)
    # 8 chunks in 24 waves and more
    assert planned(1189, longest=8192) == four_warps(1024)
    # Five times all resident thread blocks; below that 8 chunks
    assert planned(1980, longest=8192) == four_warps(2048)
    assert planned(1979, longest=8192) == four_warps(1024)


def test_up_to_three_rows_a_thread_block_have_equal_shares():
    shares = DecodePlan(4, 3, 256, shares=True)
    assert planned(265, longest=8192) == planned(1188, longest=1025) == shares
    # Up to two rows a multiprocessor one of 8 warps
    fewest_parts = DecodePlan(8, 1, 256, shares=True)
    assert planned(132, longest=8192) == planned(264, longest=1025) == fewest_parts
    for rows, longest in ((131, 8192), (1189, 8192), (132, 1024)):
        assert not planned(rows, longest=longest).shares
    # Of heads of 64 two rows a multiprocessor
    few = DecodePlan(8, 2, 256, shares=True)
    assert planned(132, head_size=64, longest=8192) == few
    assert planned(264, head_size=64, longest=8192) == few
    assert not planned(265, head_size=64, longest=8192).shares
    # Not measured
    assert not planned(132, head_size=96, longest=8192).shares
    assert not plan_decode(132, 1, 128, 8192, NUM_SMS, fp8=True).shares
    assert not plan_decode(132, 1, 128, 8192, NUM_SMS, window=4096).shares


def test_many_short_rows_take_two_warps_which_end_more_evenly():
    assert planned(792, longest=256) == DecodePlan(2, 6, 256)
    assert planned(791, longest=256) == four_warps(256)
    assert planned(1188, longest=1024) == DecodePlan(2, 6, 1024)
    assert planned(1187, longest=1024) == four_warps(1024)


def test_a_row_has_a_bounded_number_of_chunks():
    # At most 64, and 128 if there is a single row
    assert planned(1, groups=8, head_size=64, longest=65_536) == eight_warps(1024, ctas_per_sm=2)
    assert planned(1, groups=8, head_size=64, longest=65_537) == eight_warps(1152, ctas_per_sm=2)
    assert planned(1, longest=65_536) == eight_warps(512)
    assert planned(1, longest=65_537) == eight_warps(640)


def test_resident_thread_blocks_of_four_warps_follow_the_head_size():
    # 8 chunks in two waves of 528, and in four of 264
    assert planned(132, head_size=80, longest=8192) == four_warps(1024, ctas_per_sm=4)
    assert planned(132, head_size=96, longest=8192) == four_warps(1024, ctas_per_sm=4)
    assert planned(132, head_size=256, longest=8192) == four_warps(1024, ctas_per_sm=2)
    assert planned(265, head_size=64, longest=1024) == four_warps(1024, ctas_per_sm=5)


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
    assert DecodePlan(8, 2, 128).constants == {
        "NUM_WARPS": 8,
        "CTAS_PER_SM": 2,
        "WAVE": 0,
        "SHARES": 0,
    }
    assert DecodePlan(4, 3, 256, wave=True).constants["WAVE"] == 1
    assert DecodePlan(4, 3, 256, shares=True).constants["SHARES"] == 1
