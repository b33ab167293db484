"""How decode is cut: pure arithmetic."""

from hypothesis import given
from hypothesis import strategies as st

from kernels.launch.decode_plan import CTAS_PER_SM, MAX_CHUNKS, TILE, plan_decode


@given(
    st.integers(1, 20_000),
    st.sampled_from(sorted(CTAS_PER_SM)),
    st.integers(1, 131_072),
    st.sampled_from([78, 108, 132]),
)
def test_every_plan_is_valid(rows: int, head_size: int, longest: int, num_sms: int) -> None:
    plan = plan_decode(rows, head_size, longest, num_sms)
    assert plan.chunk_tokens % (TILE * plan.num_warps) == 0
    assert 1 <= plan.num_chunks(longest) <= MAX_CHUNKS
    assert plan.num_warps in (2, 4, 8)
    assert plan.ctas_per_sm >= 1


def test_full_batches_are_not_split() -> None:
    assert plan_decode(1280, 128, 1024, 132).num_chunks(1024) == 1
    assert plan_decode(320, 128, 64, 132).num_chunks(64) == 1


def test_one_long_context_fills_the_gpu() -> None:
    plan = plan_decode(40, 128, 16_384, 132)
    assert 0.8 * 132 * plan.ctas_per_sm <= 40 * plan.num_chunks(16_384) <= 132 * plan.ctas_per_sm
