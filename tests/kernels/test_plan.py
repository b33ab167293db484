"""How decode is cut: pure arithmetic."""

from hypothesis import given
from hypothesis import strategies as st

from testbed.kernels.launch.decode_plan import CTAS_PER_SM, MAX_CHUNKS, MAX_WAVE, TILE, plan_decode


@given(
    st.integers(1, 2_000),
    st.integers(1, 64),
    st.sampled_from(sorted(CTAS_PER_SM)),
    st.integers(1, 131_072),
    st.sampled_from([78, 108, 132]),
    st.booleans(),
    st.sampled_from([0, 1, 100, 1024, 4096]),
)
def test_every_decode_plan_is_valid(
    num_seqs: int, groups: int, head_size: int, longest: int, num_sms: int, fp8: bool, window: int
) -> None:
    plan = plan_decode(num_seqs, groups, head_size, longest, num_sms, fp8, window)
    assert (plan.chunk_tokens - (TILE if window else 0)) % (TILE * plan.num_warps) == 0
    assert 1 <= plan.num_chunks(plan.most_read(longest, window)) <= MAX_CHUNKS
    assert plan.num_warps in (2, 4, 8)
    assert plan.ctas_per_sm >= 1
    if plan.wave:
        assert num_seqs <= min(MAX_WAVE, num_sms * plan.ctas_per_sm // groups)


def test_windows_are_split_as_contexts_of_their_length() -> None:
    plan = plan_decode(32, 8, 128, 16_384, 132, window=1024)
    assert plan.most_read(16_384, 1024) == 1024 + TILE - 1  # a window may begin inside a tile
    assert plan.num_chunks(plan.most_read(16_384, 1024)) == plan_decode(32, 8, 128, 1024, 132).num_chunks(1024) == 1
    assert plan_decode(32, 8, 128, 4096, 132, fp8=True).chunk_tokens == 2048


def test_chunks_fill_the_gpu_only_where_heads_do_not() -> None:
    assert plan_decode(32, 40, 128, 1024, 132).num_chunks(1024) == 1
    assert plan_decode(8, 40, 128, 64, 132).num_chunks(64) == 1
    plan = plan_decode(1, 40, 128, 16_384, 132)
    assert 0.8 * 132 * plan.ctas_per_sm <= 40 * plan.num_chunks(16_384) <= 132 * plan.ctas_per_sm


def test_two_chunks_run_in_one_wave_when_worthwhile() -> None:
    assert plan_decode(8, 8, 128, 8192, 132).wave
    assert not plan_decode(8, 8, 128, 1024, 132).wave  # short contexts: finding the chunks takes longer than it saves
    assert not plan_decode(6, 8, 128, 8192, 132).wave  # 96 of 132 would run
    assert not plan_decode(64, 1, 128, 8192, 132).wave  # more sequences than lanes
