"""A profile carried to another data sheet: what it keeps, what it moves, and what it may never claim."""

import json

import pytest
from refusals import refuses

from testbed.core.specs import GIB, GpuSpec, ModelSpec
from testbed.cost.derive import STREAMS, Loads, best_rates, derive, measured
from testbed.cost.model import Work
from testbed.cost.profile import ProfileCost, read_profile

H200 = GpuSpec("h200", 150_000_000_000, 4.8e12, 989e12, 55e9, 450e9)
A100 = GpuSpec("a100-40gb", 40 * GIB, 1.555e12, 312e12, 25e9, 300e9)
BEYOND_ANY_CACHE = 200e6  # bytes
PAPER_MODELS = ["h200-opt-13b-tp1", "h200-opt-66b-tp4", "h200-opt-175b-tp8"]


def loads_of(profile):
    return Loads(ModelSpec(**profile["model"]), profile["num_gpus"])


@pytest.mark.parametrize("name", PAPER_MODELS)
def test_profile_derived_for_its_gpu_is_unchanged(name):
    profile = read_profile(name)
    for section, derived in derive(profile, H200, H200)["sections"].items():
        for (_, times), (_, moved) in zip(measured(profile["sections"][section]), measured(derived), strict=True):
            assert moved == pytest.approx(times, abs=1e-3)


@pytest.mark.parametrize("name", PAPER_MODELS)
def test_derived_kernels_do_not_exceed_target_bandwidth(name):
    profile = read_profile(name)
    loads = loads_of(profile)
    for section in STREAMS:
        for key, (us, *_) in measured(derive(profile, H200, A100)["sections"][section]):
            num_bytes, _ = loads.load(section, key)
            if num_bytes > BEYOND_ANY_CACHE:
                assert num_bytes / us * 1e6 <= A100.memory_bandwidth


def test_slower_link_adds_transfer_time_by_bytes():
    profile = read_profile("h200-opt-66b-tp4")
    derived = derive(profile, H200, A100)
    token_bytes = 64 * 2 * 9216 * 2 / 4  # K and V of 64 layers, each GPU's quarter
    sent = {
        "swap": lambda key: key[2] * key[3] * token_bytes,
        "all_reduce": lambda key: 2 * key[1] * (key[0] - 1) / key[0],
    }
    for section, before_rate, after_rate in (("swap", 55e9, 25e9), ("all_reduce", 450e9, 300e9)):
        points = zip(*(measured(p["sections"][section]) for p in (profile, derived)), strict=True)
        for (key, (before, *_)), (_, (after, *_)) in points:
            longer = sent[section](key) * 1e6 * (1 / after_rate - 1 / before_rate)
            assert after - before == pytest.approx(longer, abs=2e-3)


def test_attainable_bandwidth_limits_the_largest_products():
    profile = read_profile("h200-opt-13b-tp1")
    plain, low, configured = (derive(profile, H200, A100, share) for share in (None, 0.5, 0.86))
    before, after = (one["sections"]["linear"]["points"][0] for one in (plain, low))
    assert after[1] > 1.5 * before[1]
    assert "reaches 0.86 of its memory bandwidth" in configured["fingerprint"]["method"]
    reached = max(best_rates(loads_of(profile), s, measured(configured["sections"][s]))[0] for s in STREAMS)
    assert reached / A100.memory_bandwidth == pytest.approx(0.86, abs=0.02)


def test_derived_profile_is_labelled_and_slower_by_data_sheet(tmp_path):
    profile = read_profile("h200-opt-13b-tp1")
    derived = derive(profile, H200, A100)
    assert derived["fingerprint"]["source"] == "derived"
    assert derived["fingerprint"]["from"]["device"] == "NVIDIA H200"
    path = tmp_path / "a100.json"
    path.write_text(json.dumps(derived))
    cost, source = (ProfileCost(ModelSpec(**profile["model"]), None, one) for one in (path, profile))
    for work, least, most in (
        (Work(64, 64 * 1000), 2.5, 4.8e12 / 1.555e12 + 0.01),
        (Work(prefill=((2048, 0),)), 2.5, 3.3),
    ):
        assert least < cost.iteration(work) / source.iteration(work) < most
    refuses("only a measured profile", derive, derived, A100, H200)
