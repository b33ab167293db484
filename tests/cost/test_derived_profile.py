"""Which profile costs start from, by shape and GPU; what a profile that is carried keeps, moves and
never claims.
"""

import json
from dataclasses import replace

import pytest
from kept import GOLDEN, check_text
from refusals import refuses

from testbed.core.shapes import read_model
from testbed.core.specs import GIB, GpuSpec, ModelSpec, ServerSpec
from testbed.cost.analytic import AnalyticCost, Efficiencies
from testbed.cost.auto import (
    MEASURED,
    OTHER_CACHE,
    OTHER_GPU,
    OTHER_MODEL,
    auto_cost,
    by_way,
    carried,
    profiles_at_hand,
)
from testbed.cost.derive import STREAMS, Loads, derive, measured
from testbed.cost.model import Work
from testbed.cost.profile import ProfileCost, read_profile
from testbed.cost.sections import Choices, dump

H200 = GpuSpec("h200", 150_000_000_000, 4.8e12, 989e12, 55e9, 450e9, "NVIDIA H200")
A100 = GpuSpec("a100-40gb", 40 * GIB, 1.555e12, 312e12, 25e9, 300e9)
L4 = GpuSpec("l4", 24_000_000_000, 0.3e12, 121e12, 25e9, 25e9, "NVIDIA L4")
LLAMA = read_model("llama-3-8b")
SHIPPED = list(profiles_at_hand(None, [H200]))
BEYOND_ANY_CACHE = 200e6  # bytes
PAPER_MODELS = ["h200-opt-13b-tp1", "h200-opt-66b-tp4", "h200-opt-175b-tp8"]


def loads_of(profile):
    return Loads(ModelSpec(**profile["model"]), profile["num_gpus"])


@pytest.mark.parametrize("name", PAPER_MODELS)
def test_profile_derived_for_its_gpu_is_unchanged(name):
    profile = read_profile(name)
    for section, derived in derive(profile, H200, H200)["sections"].items():
        for (_, times), (_, moved) in zip(
            measured(profile["sections"][section]), measured(derived), strict=True
        ):
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


def test_derived_profile_is_labelled_and_slower_by_data_sheet(tmp_path):
    profile = read_profile("h200-opt-13b-tp1")
    derived = derive(profile, H200, A100)
    assert derived["fingerprint"]["source"] == "derived"
    assert derived["fingerprint"]["from"]["device"] == "NVIDIA H200"
    path = tmp_path / "a100.json"
    path.write_text(json.dumps(derived))
    cost, source = (
        ProfileCost(ModelSpec(**profile["model"]), None, one) for one in (path, profile)
    )
    for work, least, most in (
        (Work(64, 64 * 1000), 2.5, 4.8e12 / 1.555e12 + 0.01),
        (Work(prefill=((2048, 0),)), 2.5, 3.3),
    ):
        assert least < cost.iteration(work) / source.iteration(work) < most
    refuses("only a measured profile", derive, derived, A100, H200)


@pytest.mark.parametrize("name", ["plain", "linked"])
def test_a_made_up_profile_is_carried_to_the_times_that_are_kept(name, request):
    """To another GPU; and to another shard too, whose cache has one byte a value."""
    profile = read_profile(GOLDEN / "costs" / f"{name}.json")
    model = replace(
        ModelSpec(**profile["model"]),
        num_layers=5,
        hidden_size=64,
        num_kv_heads=1,
        kv_dtype_bytes=1,
    )
    ways = ((None, None), (0.5, Loads(model, 2, byte_kv_bandwidth=0.7)))
    found = [dump(derive(profile, GpuSpec(**profile["gpu"]), A100, *way)) for way in ways]
    check_text("".join(found), request)


def server(gpu=H200, num_gpus=1):
    return ServerSpec(gpu.name, gpu, num_gpus)


def cost(model, on, **options):
    return auto_cost(model, on, H200, Choices(), Efficiencies(), **options)


@pytest.mark.parametrize(
    ("model", "on", "way", "found"),
    [
        (replace(LLAMA, name="another name", max_len=131_072), server(), MEASURED, "llama-3-8b"),
        (LLAMA, server(L4), OTHER_GPU, "llama-3-8b"),
        (LLAMA, server(num_gpus=2), OTHER_MODEL, "llama-3-8b"),
        (replace(LLAMA, ffn_size=15_000), server(), OTHER_MODEL, "llama-3-8b"),
        (
            replace(read_model("opt-66b"), vocab_size=51_200),
            server(num_gpus=4),
            OTHER_MODEL,
            "opt-66b",
        ),
    ],
)
def test_the_best_way_comes_first(model, on, way, found):
    first, one = next(iter(by_way(model, on, SHIPPED).items()))
    assert (first, one.profile["model"]["name"]) == (way, found)


def test_the_name_of_another_model_finds_nothing_of_it():
    other = replace(read_model("opt-13b"), name="llama-3-8b")
    assert by_way(other, server(), SHIPPED)[MEASURED].profile["model"]["name"] == "opt-13b"


@pytest.mark.parametrize("change", [{"hidden_size": 64, "ffn_size": 256}, {"dtype_bytes": 1}])
def test_what_is_near_to_no_profile_costs_what_a_data_sheet_says(change):
    assert isinstance(cost(replace(LLAMA, **change), server()), AnalyticCost)


def test_a_profile_carried_to_its_own_shard_and_gpu_stays_as_it_is():
    one = by_way(LLAMA, server(), SHIPPED)[MEASURED]
    same = ProfileCost(
        LLAMA, server(), carried(OTHER_MODEL, one, LLAMA, server(), SHIPPED), Choices()
    )
    measured = ProfileCost(LLAMA, server(), one.profile, Choices())
    for work in (Work(8, 4096, 512, num_requests=8), Work(prefill=((512, 0),), num_requests=1)):
        assert same.iteration(work) == pytest.approx(measured.iteration(work), rel=1e-3)


@pytest.mark.parametrize("on", [server(), server(L4)])
def test_a_cache_of_one_byte_takes_the_16_bit_profile_with_fewer_bytes_to_read(on):
    narrow = replace(LLAMA, kv_dtype_bytes=1)
    wide_cost, narrow_cost = (
        auto_cost(model, on, H200, Choices(), Efficiencies(byte_kv_bandwidth=0.7))
        for model in (LLAMA, narrow)
    )
    assert narrow_cost.fingerprint["way"] == OTHER_CACHE
    few, many = (
        Work(32, 32 * 16, 16, num_requests=32),
        Work(32, 32 * 16_384, 16_384, num_requests=32),
    )
    wide, less = (cost.iteration(many) - cost.iteration(few) for cost in (wide_cost, narrow_cost))
    assert (
        0.7 <= less / wide < 0.85
    )  # half the bytes at 0.7 of the bandwidth; what no bandwidth shortens stays
    prompt = Work(prefill=((512, 0),), num_requests=1)
    assert narrow_cost.iteration(prompt) == pytest.approx(wide_cost.iteration(prompt), rel=0.01)


def test_a_profile_of_the_simulated_system_comes_first_and_serves_that_model_and_gpu_alone():
    def found(model, on, **options):
        return auto_cost(
            model, on, H200, Choices(software="engine"), Efficiencies(), **options
        ).fingerprint

    opt = read_model("opt-13b")
    assert "two runs of the engine" in found(opt, server())["tested"]
    assert "tested" not in found(opt, server(), path="h200-opt-13b-tp1")
    assert "tested" not in cost(opt, server()).fingerprint
    for model, on in ((opt, server(L4)), (replace(opt, ffn_size=25_000), server())):
        assert "tested" not in found(model, on)["from"]


def test_a_profile_of_one_gpu_borrows_the_all_reduces_of_another():
    profile = carried(
        OTHER_MODEL, by_way(LLAMA, server(), SHIPPED)[MEASURED], LLAMA, server(num_gpus=2), SHIPPED
    )
    assert profile["sections"]["all_reduce"] == read_profile("h200-opt-66b-tp4")["sections"][
        "all_reduce"
    ] | {"points": profile["sections"]["all_reduce"]["points"]}
    assert cost(LLAMA, server(num_gpus=2)).iteration(Work(8, 4096, 512)) > 0


def test_a_profile_of_one_s_own_comes_before_the_shipped_ones(tmp_path):
    own = read_profile("h200-llama-3-8b-tp1")
    own["fingerprint"] = {
        **own["fingerprint"],
        "date": "2027-01-01",
        "software_fitted_on": {"log": "hash"},
    }
    (tmp_path / "mine.json").write_text(json.dumps(own))
    for path in (tmp_path, tmp_path / "mine.json"):
        found = cost(LLAMA, server(), path=path)
        assert found.fingerprint["date"] == "2027-01-01"
        assert found.software is None  # its own times, not those of a system by name


def test_an_unmeasured_block_size_takes_the_next_larger_one():
    work = Work(64, 64 * 1024, 1024)
    found = [
        auto_cost(LLAMA, server(), H200, Choices(block_size=size), Efficiencies())
        for size in (24, 32, 512, 256)
    ]
    assert found[0].iteration(work) == found[1].iteration(work)
    assert found[2].iteration(work) == found[3].iteration(work)
