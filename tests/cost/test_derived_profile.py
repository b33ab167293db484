"""The profile that costs start from, by shape and GPU; the parts that a derived profile keeps,
scales, and leaves out.
"""

import json
from dataclasses import replace

import pytest
from arithmetic_profile import MODEL, arithmetic_profile, section
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
    best_profile,
    best_shipped,
    by_way,
    carried,
)
from testbed.cost.derive import STREAMS, Loads, derive, measured
from testbed.cost.known_profiles import profiles_at_hand
from testbed.cost.model import Work
from testbed.cost.profile import ProfileCost, read_profile
from testbed.cost.sections import Choices
from testbed.cost.software import SoftwareTimes

H200 = GpuSpec(
    "h200", 150_000_000_000, 4.8e12, 989e12, 55e9, 450e9, "NVIDIA H200", fp8_flops=1979e12
)
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
    for section_name, derived in derive(profile, H200, H200)["sections"].items():
        for (_, times), (_, moved) in zip(
            measured(profile["sections"][section_name]), measured(derived), strict=True
        ):
            assert moved == pytest.approx(times, abs=1e-3)


@pytest.mark.parametrize("name", PAPER_MODELS)
def test_derived_kernels_do_not_exceed_target_bandwidth(name):
    profile = read_profile(name)
    loads = loads_of(profile)
    for stream in STREAMS:
        for key, (us, *_) in measured(derive(profile, H200, A100)["sections"][stream]):
            num_bytes, _ = loads.load(stream, key)
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
    for link, before_rate, after_rate in (("swap", 55e9, 25e9), ("all_reduce", 450e9, 300e9)):
        points = zip(*(measured(p["sections"][link]) for p in (profile, derived)), strict=True)
        for (key, (before, *_)), (_, (after, *_)) in points:
            longer = sent[link](key) * 1e6 * (1 / after_rate - 1 / before_rate)
            assert after - before == pytest.approx(longer, abs=2e-3)


def test_derived_profile_is_labelled_and_slower_by_data_sheet(tmp_path):
    profile = read_profile("h200-opt-13b-tp1")
    derived = derive(profile, H200, A100)
    assert derived["fingerprint"]["source"] == "derived"
    assert derived["fingerprint"]["from"]["device"] == "NVIDIA H200"
    path = tmp_path / "a100.json"
    path.write_text(json.dumps(derived))
    cost, source = (
        ProfileCost(ModelSpec(**profile["model"]), None, values) for values in (path, profile)
    )
    for work, least, most in (
        (Work(64, 64 * 1000), 2.5, 4.8e12 / 1.555e12 + 0.01),
        (Work(prefill=((2048, 0),)), 2.5, 3.3),
    ):
        assert least < cost.iteration(work) / source.iteration(work) < most
    refuses("only a measured one", derive, derived, A100, H200)
    engine = arithmetic_profile()
    engine["fingerprint"]["system"] = "this project's engine"
    refuses("whole iterations of this project's engine", derive, engine, H200, A100)


# A GPU of 10 GB/s and 10 TFLOP/s on which a small model was measured. A layer of one token takes as
# long as reading its weights, the best rate of the profile: the whole bandwidth is in reach.
SOURCE = GpuSpec("source", 10**9, 10e9, 10e12, host_bandwidth=10e9, link_bandwidth=10e9)
WEIGHT_US = MODEL.layer_params * 2 / 10e9 * 1e6
KV_US = 2 * MODEL.num_kv_heads * MODEL.head_size * 2 / 10e9 * 1e6  # of a token in one layer


def small_profile(**sections):
    """One token takes as long as the weights; 4,096 are bound by the peak; 8 wait 70 us more."""
    points = [[1, WEIGHT_US], [8, WEIGHT_US + 70], [4096, 4 * WEIGHT_US]]
    linear = section("num_tokens", points)
    return arithmetic_profile() | {"sections": {"linear": linear, **sections}}


def times(profile, name):
    """The medians of a section, in order."""
    return [us[0] for _, us in measured(profile["sections"][name])]


@pytest.mark.parametrize(
    ("target", "factors"),
    [
        ({"memory_bandwidth": 5e9}, (2, 1)),  # what the weights need doubles
        ({"fp16_flops": 5e12}, (1, 2)),
        ({"memory_bandwidth": 20e9, "fp16_flops": 20e12}, (0.5, 0.5)),
    ],
)
def test_kernel_times_scale_by_the_data_sheets(target, factors):
    profile = derive(small_profile(), SOURCE, replace(SOURCE, **target))
    by_memory, by_peak = factors
    assert times(profile, "linear") == pytest.approx(
        [by_memory * WEIGHT_US, by_memory * WEIGHT_US + 70, by_peak * 4 * WEIGHT_US], abs=1e-3
    )


def test_measured_bandwidth_share_of_the_target_is_used():
    profile = derive(small_profile(), SOURCE, SOURCE, attainable=0.8)
    assert times(profile, "linear")[0] == pytest.approx(WEIGHT_US / 0.8, abs=1e-3)
    assert profile["fingerprint"]["method"].endswith("reaches 0.8 of its memory bandwidth")


def test_software_launch_times_and_shares_are_not_scaled():
    unmoved = {
        "launched_eager": section("num_tokens", [[1, 30.0]]),
        "launched_graph": section("kernel num_seqs", [["paged", 1, -20.0]]),
        "once_per_iteration": section("num_tokens", [[1, 9.0]]),
        "overhead": section("what", [["iteration", 7.0]]),
    }
    derived = derive(small_profile(**unmoved), SOURCE, A100)
    for name, body in unmoved.items():
        assert derived["sections"][name] == body


def test_transfers_take_the_bandwidth_of_the_new_link():
    """A swap of 2 blocks of 16 tokens; an all-reduce of 10,000 bytes over 2 GPUs sends as many."""
    swap = section("method direction block_size num_blocks", [["fused", "out", 16, 2, 900.0]])
    reduced = section("num_gpus bytes", [[2, 10_000, 9.0]])
    profile = small_profile(swap=swap, all_reduce=reduced)
    derived = derive(profile, SOURCE, replace(SOURCE, host_bandwidth=5e9, link_bandwidth=20e9))
    swapped_us = 32 * MODEL.num_layers * KV_US
    assert times(derived, "swap") == pytest.approx([900 + swapped_us], abs=1e-3)
    assert times(derived, "all_reduce") == pytest.approx([9 - 0.5], abs=1e-3)
    fast = derive(profile, SOURCE, replace(SOURCE, host_bandwidth=1e30, link_bandwidth=1e30))
    assert times(fast, "all_reduce") == pytest.approx([8], abs=1e-3)
    assert times(fast, "swap") == pytest.approx([max(900 / 4, 900 - swapped_us)], abs=1e-3)


SHARD_SECTIONS = {
    "output_head": section("num_rows", [[1, 1000.0]]),
    "cache_write": section("num_tokens", [[1000, 2000 * KV_US + 5]]),
    "decode_attention": section("num_seqs total_context", [[4, 1000, 1000 * KV_US + 5]]),
    "block_copy": section(
        "block_size num_blocks", [[16, 10, 2 * 160 * MODEL.num_layers * KV_US + 5]]
    ),
}


def test_times_scale_by_the_bytes_of_another_shard():
    """With half the KV heads and twice the rows of the head; 5 us of launches stay."""
    other = replace(MODEL, num_kv_heads=1, vocab_size=2 * MODEL.vocab_size)
    profile = small_profile(**SHARD_SECTIONS)
    derived = derive(profile, SOURCE, SOURCE, shard=Loads(other, 1))
    expected = {
        "cache_write": 1000 * KV_US + 5,
        "decode_attention": 500 * KV_US + 5,
        "block_copy": 160 * MODEL.num_layers * KV_US + 5,
        "output_head": 2 * 1000,  # bound by its products, at the section's best rate
    }
    for name, us in expected.items():
        assert times(derived, name) == pytest.approx([us], abs=2e-3), name
    assert derived["model"]["num_kv_heads"] == 1
    assert derived["num_gpus"] == 1


def test_a_cache_of_one_byte_is_read_at_its_own_bandwidth():
    narrow = replace(MODEL, kv_dtype_bytes=1)
    loads = Loads(narrow, 1, byte_kv_bandwidth=0.8)
    derived = derive(small_profile(**SHARD_SECTIONS), SOURCE, SOURCE, shard=loads)
    assert times(derived, "decode_attention") == pytest.approx([500 / 0.8 * KV_US + 5], abs=2e-3)
    assert times(derived, "cache_write") == pytest.approx([1000 * KV_US + 5], abs=2e-3)


def test_prompts_are_bound_by_their_pairs():
    """100 new tokens behind 50: 100 x 50 + 5,050 pairs; 50 alone have 1,275."""
    axes = "num_seqs new_tokens past_tokens"
    prompts = section(axes, [[1, 100, 50, 10_050.0], [2, 50, 0, 9_999.0]])
    profile = small_profile(prefill_attention=prompts)
    derived = derive(profile, SOURCE, replace(SOURCE, fp16_flops=5e12))
    first, second = times(derived, "prefill_attention")
    assert first == pytest.approx(2 * 10_050, abs=1e-3)  # the best rate of the section
    assert second == pytest.approx(9_999 + 2 * 1275, abs=1e-3)  # what it needs at that rate


@pytest.mark.parametrize(
    ("section", "key", "num_bytes", "flops"),
    [
        ("linear", (7,), 2 * MODEL.layer_params, 2 * 7 * MODEL.layer_params),
        ("output_head", (7,), 2 * 1100 * 96, 2 * 7 * 1100 * 96),
        ("cache_write", (7,), 2 * 7 * 128, 0),  # keys and values of two heads are 128 bytes
        ("prefill_attention", (3, 10, 50), 3 * 60 * 128, 3 * (500 + 55) * 4 * 8 * 16),
        ("mixed_attention", (10, 50, 2, 40), (60 + 80) * 128, (500 + 55) * 4 * 8 * 16),
        ("decode_attention", (2, 80), 80 * 128, 0),
        ("block_copy", (3, 16), 2 * 48 * 128 * 4, 0),
    ],
)
def test_bytes_and_operations_of_points_by_hand(section, key, num_bytes, flops):
    assert Loads(MODEL, 1).load(section, key) == (num_bytes, flops)


def test_a_mixed_batch_reads_contexts_and_computes_pairs():
    """4 decodes of 250 tokens each, if memory binds: reading takes twice as long."""
    mixed = section(
        "prefill_tokens past_tokens num_seqs mean_context",
        [[1, 0, 4, 250, 2000 * KV_US], [1000, 0, 0, 0, 1.0]],
    )
    profile = small_profile(mixed_attention=mixed)
    derived = derive(profile, SOURCE, replace(SOURCE, memory_bandwidth=5e9))
    assert times(derived, "mixed_attention")[0] == pytest.approx(3001 * KV_US, abs=1e-3)


def server(gpu=H200, num_gpus=1):
    return ServerSpec(gpu.name, gpu, num_gpus)


def cost(model, on, **options):
    return auto_cost(model, on, H200, Choices(), Efficiencies(), **options)


def best_way(model, on):
    """The best way to costs of a model on a server, and the model whose profile it takes."""
    way, nearest_profile = next(iter(by_way(model, on, SHIPPED).items()))
    return way, nearest_profile.profile["model"]["name"]


def test_a_measured_profile_is_the_best_way_whatever_the_models_name():
    same_shape = replace(LLAMA, name="another name", max_len=131_072)
    assert best_way(same_shape, server()) == (MEASURED, "llama-3-8b")


def test_another_gpus_profile_comes_before_another_models():
    assert best_way(LLAMA, server(L4)) == (OTHER_GPU, "llama-3-8b")


def test_a_like_shape_is_the_best_way_where_no_profile_has_the_shard():
    assert best_way(LLAMA, server(num_gpus=2)) == (OTHER_MODEL, "llama-3-8b")
    wider = replace(LLAMA, ffn_size=15_000)
    assert best_way(wider, server()) == (OTHER_MODEL, "llama-3-8b")
    other_vocabulary = replace(read_model("opt-66b"), vocab_size=51_200)
    assert best_way(other_vocabulary, server(num_gpus=4)) == (OTHER_MODEL, "opt-66b")


@pytest.mark.parametrize("on", [server(), server(L4), server(num_gpus=2)])
def test_a_profile_that_is_kept_for_the_next_run_equals_one_computed_anew(on):
    asked = {
        "model": LLAMA,
        "gpu": on.gpu,
        "num_gpus": on.num_gpus,
        "source": H200,
        "system": "engine",
        "iterations": None,
        "share": 0.8,
        "byte_kv_bandwidth": 0.9,
    }
    kept = best_shipped(**asked)
    ProfileCost(LLAMA, on, kept, Choices()).iteration(Work(8, 4096, 512))
    assert kept is best_shipped(**asked)
    assert kept == best_profile(**asked)


def test_profile_is_found_by_shape_not_by_name():
    other = replace(read_model("opt-13b"), name="llama-3-8b")
    assert by_way(other, server(), SHIPPED)[MEASURED].profile["model"]["name"] == "opt-13b"


@pytest.mark.parametrize("change", [{"hidden_size": 64, "ffn_size": 256}, {"dtype_bytes": 1}])
def test_shape_far_from_all_profiles_takes_a_roofline(change):
    assert isinstance(cost(replace(LLAMA, **change), server()), AnalyticCost)


def test_profile_carried_to_its_own_shard_and_gpu_is_unchanged():
    nearest_profile = by_way(LLAMA, server(), SHIPPED)[MEASURED]
    same = ProfileCost(
        LLAMA, server(), carried(OTHER_MODEL, nearest_profile, LLAMA, server(), SHIPPED), Choices()
    )
    measured = ProfileCost(LLAMA, server(), nearest_profile.profile, Choices())
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
    def costs(model, on, **options):
        return auto_cost(
            model, on, H200, Choices(), Efficiencies(), software=SoftwareTimes("engine"), **options
        ).fingerprint

    opt = read_model("opt-13b")
    assert "two runs of the engine" in costs(opt, server())["tested"]
    assert "tested" not in costs(opt, server(), path="h200-opt-13b-tp1")
    assert "tested" not in cost(opt, server()).fingerprint
    for model, on in ((opt, server(L4)), (replace(opt, ffn_size=25_000), server())):
        assert "tested" not in costs(model, on)["from"]


def test_a_profile_of_one_gpu_borrows_the_all_reduces_of_another():
    profile = carried(
        OTHER_MODEL, by_way(LLAMA, server(), SHIPPED)[MEASURED], LLAMA, server(num_gpus=2), SHIPPED
    )
    assert profile["sections"]["all_reduce"] == read_profile("h200-opt-66b-tp4")["sections"][
        "all_reduce"
    ] | {"points": profile["sections"]["all_reduce"]["points"]}
    assert cost(LLAMA, server(num_gpus=2)).iteration(Work(8, 4096, 512)) > 0


def test_user_profile_comes_before_shipped_ones(tmp_path):
    own = read_profile("h200-llama-3-8b-tp1")
    own["fingerprint"] = {
        **own["fingerprint"],
        "date": "2027-01-01",
        "software_fitted_on": {"log": "hash"},
    }
    (tmp_path / "mine.json").write_text(json.dumps(own))
    for path in (tmp_path, tmp_path / "mine.json"):
        own_cost = cost(LLAMA, server(), path=path)
        assert own_cost.fingerprint["date"] == "2027-01-01"
        assert own_cost.software is None  # its own times, not those of a system by name


def test_an_unmeasured_block_size_takes_the_next_larger_one():
    work = Work(64, 64 * 1024, 1024)
    costs = [
        auto_cost(LLAMA, server(), H200, Choices(block_size=size), Efficiencies())
        for size in (24, 32, 512, 256)
    ]
    assert costs[0].iteration(work) == costs[1].iteration(work)
    assert costs[2].iteration(work) == costs[3].iteration(work)
