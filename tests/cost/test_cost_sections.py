"""The profile format: its example, optional sections, mixed batches, unequal lengths; spans equal
to steps.
"""

import json
import re
from copy import deepcopy
from pathlib import Path

import pytest
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses

import testbed.cost
from testbed.core.specs import ModelSpec
from testbed.cost.interpolation import UnequalLengths
from testbed.cost.model import UNBOUNDED, Moved, Work
from testbed.cost.profile import Choices, ProfileCost, read_profile
from testbed.cost.sections import check_profile, dump

DOC = (Path(testbed.cost.__file__).parent / "PROFILE_FORMAT.md").read_text()
EXAMPLE = json.loads(re.search(r"```json\n(.*?)```", DOC, re.DOTALL)[1])
UNEQUAL = {
    "default": 0.25,
    "points": [
        [0, 0, seqs, percent, longest, share]
        for seqs, percent, longest, share in [
            (8, 40, 100, 0.5),
            (8, 40, 1000, 0.031),
            (8, 70, 1000, 0.2),
            (8, 100, 100, 0.0137),
            (64, 40, 100, 0.9),
            (64, 40, 1000, 0.8),
            (64, 70, 100, 0.1234),
            (64, 100, 1000, 1.0),
        ]
    ],
}
MIXED = [
    [new, past, seqs, mean, 5 + new / 16 + past / 100 + seqs * (1 + mean / 100)]
    for new in (16, 128)
    for past in (0, 512)
    for seqs, means in ((0, (0,)), (4, (16, 1024)), (32, (16, 1024)))
    for mean in means
]


def profile_with(**sections):
    profile = deepcopy(EXAMPLE)
    for name, body in sections.items():
        if body is None:
            profile["sections"].pop(name, None)
        else:
            profile["sections"][name] = body
    return profile


def cost_of(profile, **choices):
    return ProfileCost(ModelSpec(**profile["model"]), None, profile, Choices(**choices))


def measured(axes, points):
    return {"axes": axes.split(), "columns": ["us"], "points": points}


MIXED_SECTION = measured("prefill_tokens past_tokens num_seqs mean_context", MIXED)
PLAIN = cost_of(EXAMPLE)
OVERHEAD = measured("what", [["iteration", 7.0], ["request", 2.0], ["token", 0.5]])
FULL = cost_of(profile_with(unequal_lengths=UNEQUAL, overhead=OVERHEAD), attention_scale=1.3)


SHIPPED = read_profile("h200-opt-13b-tp1")
COSTS = [PLAIN, FULL, cost_of(SHIPPED), cost_of(SHIPPED, kernel="paper", block_size=32)]


def us(**work):
    return cost_of(profile_with()).iteration(Work(**work)) / 1e6


def test_documented_example_profile_gives_the_expected_time():
    # Two layers: linear of 1 token 20 us, decode attention of 16 tokens 5 us; head 50 us; padding
    # and software none.
    assert us(decode_seqs=1, decode_context=16, decode_max_context=16) == 2 * 20 + 2 * 5 + 50


def test_stepwise_interpolation_uses_the_next_point():
    profile = profile_with()
    del profile["cuda_graph_sizes"]
    line = cost_of(profile)._layers
    profile["sections"]["linear"]["between"] = "next"
    stairs = cost_of(profile)._layers
    assert stairs._linear(1) == line._linear(1) == 40e6
    assert stairs._linear(2) == stairs._linear(64) == line._linear(64) == 60e6
    assert stairs._linear(65) == 180e6
    assert stairs._linear(1000) == line._linear(1000) > 180e6
    profile["sections"]["linear"]["between"] = "curve"
    refuses("section linear: between is 'curve'", check_profile, profile, "the profile")


def test_missing_section_is_refused_only_when_needed():
    cost = cost_of(profile_with(prefill_attention=None, decode_attention=None, cache_write=None))
    for work, section in (
        (Work(1, 16, 16), "cache_write"),  # nothing includes it now
        (Work(copies=((16, 1),)), "block_copy"),
        (
            Work(moves=(Moved(source="DEVICE", target="HOST", length=16, num_transfers=1),)),
            "swap",
        ),
    ):
        refuses(section if section != "swap" else "swap|transfers", cost.iteration, work)
    there = measured("num_tokens", [[1, 0.0]])
    cost = cost_of(profile_with(prefill_attention=None, decode_attention=None, cache_write=there))
    refuses("no section decode_attention", cost.decode, Work(1, 16, 16))
    refuses("no section prefill_attention", cost.iteration, Work(prefill=((16, 0),)))


def test_unequal_length_shares_interpolate_between_bins():
    points = [
        [new, past, n, 100, longest, new / 1000 + past / 10_000 + n / 640 + (longest > 100) / 8]
        for new in (0, 16, 128)
        for past in (0, 512)
        for n in (8, 64)
        for longest in (100, 1000)
    ]
    table = UnequalLengths(
        {"default": 0.7, "points": [row for row in points if row[0] or not row[1]]}
    )
    assert table.share(0, 0, Work(36, 36 * 90, 90)) == pytest.approx(36 / 640)
    assert table.share(72, 256, Work(36, 36 * 90, 90)) == pytest.approx(0.072 + 0.0256 + 36 / 640)
    assert table.share(72, 256, Work(36, 36 * 101, 101)) == pytest.approx(
        0.072 + 0.0256 + 36 / 640 + 1 / 8
    )
    assert table.share(4, 0, Work(8, 8, 1)) == table.share(
        16, 0, Work(8, 8, 1)
    )  # not blended with decodes alone
    assert table.share(999, 9999, Work(999, 999, 1)) == pytest.approx(0.128 + 0.0512 + 0.1)
    assert (
        UnequalLengths({"default": 0.7, "points": points[:1]}).share(16, 0, Work(8, 8, 1))
        == points[0][-1]
    )


def test_lengths_beyond_the_last_bin_have_its_share_for_ever():
    points = [[0, 0, 2, 50, 100, 0.25], [0, 0, 2, 20, 100, 0.5]]
    table = UnequalLengths({"default": 0.7, "points": points})
    for context, longest in ((180, 90), (400, 200)):
        work = Work(2, context, longest)
        assert (table.share(0, 0, work), table.steps(work)) == (0.25, UNBOUNDED)


def test_mixed_batch_times_are_measured_and_interpolated():
    profile = profile_with(mixed_attention=MIXED_SECTION, prefill_attention=None)
    cost = cost_of(profile)
    layers = cost._layers.time_ps

    def attention_us(*prefill, seqs=0, mean=0):
        work = Work(
            decode_seqs=seqs,
            decode_context=seqs * mean,
            decode_max_context=mean,
            prefill=prefill,
        )
        return (cost.iteration(work) - layers(work.num_tokens, seqs + len(prefill))) / 2e6

    assert attention_us((16, 0)) == 6
    assert attention_us((128, 512), seqs=32, mean=1024) == 5 + 8 + 5.12 + 32 * 11.24
    assert attention_us((72, 256), seqs=18, mean=520) == pytest.approx(5 + 4.5 + 2.56 + 18 * 6.2)
    assert attention_us((3, 0), seqs=4, mean=16) == attention_us((16, 0), seqs=4, mean=16)
    assert attention_us((240, 0)) == pytest.approx(
        5 + 240 / 16
    )  # beyond the grid the last piece goes on
    both = attention_us((64, 0), (64, 100))
    assert attention_us((128, 0)) < both <= attention_us((64, 0)) + attention_us((64, 100))


@settings(max_examples=examples(400))
@given(
    st.sampled_from(COSTS),
    st.integers(1, 400),
    st.integers(1, 2048),
    st.integers(0, 400),
    st.integers(0, 100),
)
def test_span_cost_equals_its_steps_exactly(cost, num_seqs, longest, shorter, shared_percent):
    context = (
        max(num_seqs * max(1, longest - shorter), longest + num_seqs - 1)
        if num_seqs > 1
        else longest
    )
    context = min(context, num_seqs * longest)
    work = Work(
        decode_seqs=num_seqs,
        decode_context=context,
        decode_max_context=longest,
        decode_repeated=context * shared_percent // 100,
        num_requests=num_seqs,
    )
    span = cost.decode(work)
    assert span.steps >= 1
    assert span.growth_ps >= 0
    last = 2000 if span.steps == UNBOUNDED else span.steps - 1
    for step in {0, 1, last // 3, last // 2, last}:
        if step < span.steps:
            later = work._replace(
                decode_context=context + step * num_seqs, decode_max_context=longest + step
            )
            time_ps = cost.iteration(later)
            assert isinstance(time_ps, int)
            assert span.first_ps + step * span.growth_ps == time_ps


def test_a_profile_is_written_with_a_point_a_line():
    text = dump(EXAMPLE)
    assert json.loads(text) == EXAMPLE
    assert "    [64, 262144, 300.0]\n" in text
