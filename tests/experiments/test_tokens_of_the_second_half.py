"""A sweep's table has percentiles of whole runs; a line says if the second half differs."""

import pytest

from testbed.experiments.runs.first_tokens import remarks_on_first_tokens


def summary(half, whole, *, wait=1.0, latency=10.0):
    """A run with these medians of the second half and of the whole, and these means."""
    return {
        "while_arriving": None if half is None else {"ttft_p50_s": half, "ttft_p99_s": 2 * half},
        "ttft_s": {"mean": wait, "p50": whole, "p99": 2 * whole},
        "e2e_s": {"mean": latency},
        "tpot_s": {"mean": 0.1},
    }


@pytest.mark.parametrize(
    ("halves", "said"),
    [((142.0, 142.0), True), ((27.0, 29.0), False), ((20.0, 20.0), True), ((None, 142.0), False)],
)
def test_another_median_of_the_second_half_is_said(halves, said):
    remarks = remarks_on_first_tokens([summary(half, 28.0) for half in halves])
    assert [
        f"p50 {halves[0]:.3g} s" in remark and "28 and 56 s" in remark for remark in remarks
    ] == ([True] if said else [])


def test_waiting_for_most_of_the_latency_is_said():
    assert remarks_on_first_tokens([summary(1.0, 1.0, wait=4.9)]) == []
    [remark] = remarks_on_first_tokens([summary(1.0, 1.0, wait=5.1)])
    assert "5.1 of 10 s" in remark
