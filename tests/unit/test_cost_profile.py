"""Prices from shipped profiles: whole numbers, piecewise affine, spans equal to steps, derived ones say so."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import testbed.cost
from testbed.core.errors import InputError
from testbed.core.slots import DEVICE, HOST
from testbed.core.specs import GIB, GpuSpec, ModelSpec, ServerSpec
from testbed.cost.derive import derive
from testbed.cost.knots import Knots, Line
from testbed.cost.model import UNBOUNDED, Moved, Work
from testbed.cost.move_tables import SizedTable
from testbed.cost.profile import Choices, ProfileCost, read_profile

FOLDER = Path(testbed.cost.__file__).parent / "profiles"
SHIPPED = sorted(path.stem for path in FOLDER.glob("*.json"))
H200 = GpuSpec("h200", 150_000_000_000, 4.8e12, 989e12, 55e9, 450e9)
A100 = GpuSpec("a100-40gb", 40 * GIB, 1.555e12, 312e12, 25e9, 300e9)
PROFILE = read_profile("h200-opt-13b-tp1")
OPT_13B = ModelSpec(**PROFILE["model"])


def cost_of(**choices):
    return ProfileCost(OPT_13B, None, PROFILE, Choices(**choices))


COST, PAPER = cost_of(), cost_of(kernel="paper", block_size=32)


def test_the_seven_profiles_ship():
    names = {"opt-13b-tp1", "opt-66b-tp4", "opt-175b-tp8", "llama-13b-tp1", "llama-3-8b-tp1", "llama-3-70b-tp4"}
    assert {f"h200-{name}" for name in names | {"qwen2.5-0.5b-tp1"}} <= set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_profile_says_where_it_comes_from_and_how_well_it_fits(name):
    profile = read_profile(name)
    assert profile["fingerprint"]["source"] == "measured"
    assert profile["fingerprint"]["device"] == "NVIDIA H200"
    assert profile["fit"]["median_error"] < 0.03
    assert profile["fit"]["p95_error"] < 0.08
    assert profile["fit"]["num_batches"] == 200


@pytest.mark.parametrize("name", SHIPPED)
def test_the_recorded_fit_is_what_the_loader_gives(name):
    profile = read_profile(name)
    cost = ProfileCost(ModelSpec(**profile["model"]), None, profile, Choices(overhead_s=0.0))
    for num_seqs, context, _, _, predicted_us in profile["fit"]["points"][::7]:
        assert cost.iteration(Work(num_seqs, context)) / 1e6 == pytest.approx(predicted_us, abs=0.06)


@given(st.integers(1, 400), st.integers(1, 2048), st.sampled_from([COST, PAPER]))
def test_a_span_equals_its_steps_bit_for_bit(num_seqs, mean, cost):
    context = num_seqs * mean
    span = cost.decode(Work(num_seqs, context))
    last = 40 if span.steps == UNBOUNDED else span.steps - 1
    for step in {0, 1, last // 2, last}:
        if step < span.steps:
            price = cost.iteration(Work(num_seqs, context + step * num_seqs))
            assert isinstance(price, int)
            assert span.first_ps + step * span.growth_ps == price


@given(st.integers(1, 300), st.integers(1, 2000), st.integers(1, 300))
def test_more_context_never_costs_less_within_a_piece(num_seqs, mean, more):
    span = COST.decode(Work(num_seqs, num_seqs * mean))
    assert span.growth_ps >= 0
    assert span.steps >= 1


def test_every_worker_gets_its_input_in_turn():
    profile = read_profile("h200-opt-66b-tp4")
    model = ModelSpec(**profile["model"])
    alone, told = (
        ProfileCost(model, None, profile, Choices(overhead_per_worker_s=seconds)).iteration(Work(8, 800))
        for seconds in (0.0, 1e-3)
    )
    assert told - alone == 4 * 10**9


def test_prices_cover_every_part():
    idle, decode = COST.iteration(Work()), COST.iteration(Work(8, 800))
    assert idle == 0
    assert COST.iteration(Work(8, 800, prefill=((100, 0),))) > decode
    assert COST.iteration(Work(8, 800, copies=((16, 3),))) > decode
    for way in ((DEVICE, HOST), (HOST, DEVICE)):
        swap = Work(8, 800, moves=(Moved(*way, 16, 5),))
        assert decode < COST.iteration(swap) < cost_of(swap="per block").iteration(swap)
    bare, slow = (cost_of(overhead_s=seconds).iteration(Work(8, 800)) for seconds in (0.0, 0.01))
    assert slow - bare == 10**10
    assert bare < decode


def test_what_waits_for_a_swap_is_told():
    away, back = (Moved(*way, 16, 20) for way in ((DEVICE, HOST), (HOST, DEVICE)))
    waits, decode, idle = cost_of(swap_waits="all in"), COST.iteration(Work(8, 800)), Work(moves=(back,))
    assert waits.iteration(Work(8, 800, moves=(away,))) == decode  # hidden behind computing
    assert waits.iteration(Work(8, 800, moves=(back,))) == decode + waits.iteration(idle)
    assert COST.iteration(Work(8, 800, moves=(back,))) < decode + waits.iteration(idle)
    with pytest.raises(InputError, match="swap_waits: never is not one of by layer, all in"):
        cost_of(swap_waits="never")


def test_the_papers_kernel_costs_more():
    assert PAPER.iteration(Work(32, 32 * 400)) > COST.iteration(Work(32, 32 * 400))


def test_what_was_not_measured_is_refused():
    with pytest.raises(InputError, match="block size 17"):
        cost_of(block_size=17)
    with pytest.raises(InputError, match="kernel: fast"):
        cost_of(kernel="fast")
    with pytest.raises(InputError, match="no profile nowhere"):
        ProfileCost(OPT_13B, None, "nowhere")
    with pytest.raises(InputError, match="is of opt-13b on 1 GPU"):
        ProfileCost(OPT_13B, ServerSpec("two", H200, 2), PROFILE)


def test_knots_are_whole_numbers_and_reach_both_ways():
    knots = Knots([(10, 100), (20, 205), (40, 200)])
    assert [knots(x) for x in (0, 10, 15, 20, 39, 40, 80)] == [0, 100, 150, 205, 205, 205, 205]
    assert (knots.piece(15)[2], knots.piece(25)[2]) == (20, UNBOUNDED)
    assert Knots([(5, 7)])(100) == 7


def test_a_line_may_fall_and_is_level_beyond_its_ends():
    line = Line([(20, -100), (10, 100)])
    assert [line(x) for x in (0, 10, 15, 20, 80)] == [100, 100, 0, -100, -100]


def test_unmeasured_block_sizes_are_blended():
    table = SizedTable([((16, 1), 100), ((16, 2), 200), ((32, 1), 180), ((32, 2), 360)])
    assert (table(24, 1), table(24, 2), table(24, 0)) == (140, 280, 0)


def test_a_derived_profile_says_so_and_scales_with_the_data_sheet(tmp_path):
    derived = derive(PROFILE, H200, A100)
    assert derived["fingerprint"]["source"] == "derived"
    assert derived["fingerprint"]["from"]["device"] == "NVIDIA H200"
    path = tmp_path / "a100.json"
    path.write_text(json.dumps(derived))
    cost = ProfileCost(OPT_13B, None, path)
    assert 2.5 < cost.iteration(Work(64, 64 * 1000)) / COST.iteration(Work(64, 64 * 1000)) < 4.8e12 / 1.555e12 + 0.01
    assert 2.5 < cost.iteration(Work(prefill=((2048, 0),))) / COST.iteration(Work(prefill=((2048, 0),))) < 3.3
    with pytest.raises(InputError, match="only a measured profile"):
        derive(derived, A100, H200)
