"""Costs of windows, states and experts by their sections: fast equals stepped, and each rule by hand."""

import random
from dataclasses import asdict, replace

import pytest
from refusals import refuses

from testbed.core.errors import InputError
from testbed.core.layers import Experts, States, Window
from testbed.core.shapes import read_model
from testbed.cost.kv_groups import WindowTable
from testbed.cost.model import UNBOUNDED, WindowReads, Work
from testbed.cost.profile import Choices, ProfileCost

PLAIN = replace(read_model("llama-3-8b"), name="small", num_layers=4)
MODEL = replace(PLAIN, window=Window(64, 2), states=States(1, 1000, 500), experts=Experts(8, 2, 128))
SIZES = (1, 2, 4, 16, 64, 128, 512)


def section(axes, points):
    return {"covers": "", "axes": axes, "columns": ["us"], "note": "", "points": points}


def decodes(us):
    return section(["num_seqs", "total_context"], [[n, n * mean, us(n, mean)] for n in (1, 8, 32) for mean in SIZES])


def profile(**more):
    prompts = section(["num_seqs", "new_tokens", "past_tokens"], [[n, new, 0, 2.0 + n * new / 50] for n in (1, 2, 8, 32)
                                                                  for new in (1, 64, 4096)])  # fmt: skip
    flat = section(["num_tokens"], [[1, 10.0], [4096, 500.0]])
    return {
        "format": 1, "fingerprint": {"source": "test"}, "model": asdict(MODEL), "num_gpus": 1, "gpu": None,
        "sections": {
            "linear": flat, "cache_write": flat, "output_head": {**flat, "axes": ["num_rows"]},
            "decode_attention": decodes(lambda n, mean: 5 + n * mean / 70),
            "prefill_attention": prompts, "window_prefill_attention": prompts, "state_prefill": prompts,
            "window_decode_attention": decodes(lambda n, mean: 6 + n * min(mean, 64) / 60 + 3 * n * (mean > 64)),
            "state_decode": section(["num_seqs"], [[1, 3.0], [32, 40.0]]),
            "experts": section(["distribution", "num_tokens"], [["balanced", 1, 4.0], ["balanced", 4096, 90.0],
                                                                ["skewed", 1, 4.0], ["skewed", 4096, 180.0]]),
        },
        **more,
    }  # fmt: skip


def work(lens):
    reads = WindowReads(64, sum(min(n, 64) for n in lens), sum(n < 64 for n in lens),
                        min((64 - n for n in lens if n < 64), default=UNBOUNDED))  # fmt: skip
    return Work(len(lens), sum(lens), max(lens), num_requests=len(lens), windows=(reads,))


def test_decode_steps_equal_iterations():
    cost, rng = ProfileCost(MODEL, None, profile()), random.Random(3)
    for _ in range(300):
        lens = [round(2 ** rng.uniform(0, 9)) for _ in range(rng.randint(1, 40))]
        found = cost.decode(work(lens))
        for k in range(min(found.steps, 30)):
            assert cost.iteration(work([n + k for n in lens])) == found.first_ps + k * found.growth_ps


def test_a_window_charges_long_and_short_sequences_their_shares():
    points = [((n, n * mean), 10 * n * min(mean, 64) + 7 * n * (mean > 64)) for n in (1, 8) for mean in SIZES]
    table = WindowTable(points, 64, 1)
    assert table.span(work([500] * 8)).first_ps == 8 * 647  # beyond the window, whatever the length
    assert table.span(work([16] * 8)) == (8 * 160, 80, 48)
    assert table.span(work([500] * 4 + [16] * 4)) == (4 * 647 + 4 * 160, 40, 48)
    within = WindowTable([point for point in points if point[0][1] <= 64 * point[0][0]], 64, 1)
    assert within.span(work([500] * 8)).first_ps == 8 * 640
    refuses("windows of 64", table.span, Work(1, 5, 5))


def test_each_section_counts_its_own_layers():
    cost = ProfileCost(MODEL, None, profile())
    one = work([100])
    for name, us, layers in (("state_decode", 3.0, 1), ("decode_attention", 5 + 100 / 70, 1), ("experts", 4.0, 4)):
        double = profile()
        double["sections"][name]["points"] = [[*row[:-1], 2 * row[-1]] for row in double["sections"][name]["points"]]
        more = ProfileCost(MODEL, None, double).iteration(one) - cost.iteration(one)
        assert more == pytest.approx(us * layers * 1e6, rel=1e-4)


def test_experts_take_the_distribution_that_is_chosen():
    balanced = ProfileCost(MODEL, None, profile()).iteration(Work(prefill=((4096, 0),)))
    skewed = ProfileCost(MODEL, None, profile(), Choices(experts="skewed")).iteration(Work(prefill=((4096, 0),)))
    assert skewed - balanced == pytest.approx(4 * 90 * 10**6, rel=1e-4)
    with pytest.raises(InputError, match="experts=other: the profile has balanced, skewed"):
        ProfileCost(MODEL, None, profile(), Choices(experts="other"))
    with pytest.raises(InputError, match="llama-3-8b has no experts"):
        ProfileCost(read_model("llama-3-8b"), None, "h200-llama-3-8b-tp1", Choices(experts="skewed"))


def test_prompts_of_a_batch_take_their_share_of_as_many():
    cost = ProfileCost(MODEL, None, profile())

    def attention(prefill):  # of the window's two layers, the full one and the state's: all four alike
        return cost._attention(Work(prefill=prefill)) / 4e6

    assert attention(((4096, 0),) * 8) == pytest.approx(2 + 8 * 4096 / 50)
    assert attention(((4096, 0), (64, 0))) == pytest.approx((2 + 2 * 4096 / 50) / 2 + (2 + 2 * 64 / 50) / 2)
