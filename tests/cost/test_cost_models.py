"""Costs small enough to be worked out by hand: of data sheets, copies, all-reduces, prompts and
mixed batches.
"""

from dataclasses import replace

import pytest
from refusals import refuses
from tiny import OneMillisecond, analytic

from testbed.core.layers import States, Window
from testbed.core.request import PS
from testbed.core.shapes import read_model
from testbed.core.specs import GpuSpec, ModelSpec, ServerSpec, TierSpec
from testbed.cost.all_reduce_times import all_reduce
from testbed.cost.analytic import AnalyticCost, Efficiencies, _query_share, pairs_of
from testbed.cost.attention_times import MixedTable
from testbed.cost.interpolation import Knots
from testbed.cost.model import UNBOUNDED, Affine, Moved, WindowReads, Work

MODEL = ModelSpec("tiny", 3, 100, 4, 4, 25, 256, 2, 100, 512)  # 1,200 bytes of K and V a token
GPU = GpuSpec("gpu", 10**9, 1e30, 1e30, 1e8, link_bandwidth=2e9)
REDUCED_US = [
    [2, 1000, 4.0],
    [2, 3000, 10.0],
    [4, 1000, 8.0],
    [4, 3000, 10.0],
]  # by number of GPUs and bytes


def cost(num_gpus=1, memory_bandwidth=1e9, fp16_flops=1e30, link_bandwidth=1e30, **efficiencies):
    gpu = GpuSpec("gpu", 10**9, memory_bandwidth, fp16_flops, 1e30, link_bandwidth)
    return analytic(ServerSpec("server", gpu, num_gpus), MODEL, **efficiencies)


@pytest.mark.parametrize(("bits", "share"), [(8, 1.0), (8.002, 1.0), (12, 0.5), (14, 0.25)])
def test_weights_in_fp8_take_its_peak_and_those_left_in_16_bits_that_of_16(bits, share):
    """By hand: 2 FLOPs for each weight and token, if memory is no bound; the bits are a mean."""
    model = replace(MODEL, weight_bits=bits, fp8_products=True)
    gpu = replace(GPU, fp16_flops=1e12, fp8_flops=4e12)
    head = MODEL.vocab_size * MODEL.hidden_size
    layers = MODEL.active_params - head
    work = Work(prefill=((1000, 0),))
    attention = 4 * 1000 * 1001 / 2 * MODEL.hidden_size * MODEL.num_layers / 1e12

    def seconds(gpu):
        return AnalyticCost(model, ServerSpec("s", gpu, 1), Efficiencies()).iteration(work) / PS

    in_fp8 = 2000 * (layers * share / 4e12 + (layers * (1 - share) + head) / 1e12)
    assert seconds(gpu) == pytest.approx(in_fp8 + attention, rel=1e-6)
    without = seconds(replace(gpu, fp8_flops=None))
    assert without == pytest.approx(2000 * (layers + head) / 1e12 + attention, rel=1e-6)


def test_experts_in_fp8_beside_attention_in_16_bits_count_apart():
    """By hand: of a token's two experts in FP8 the weights, and all others in 16 bits."""
    mixture = read_model("mixtral-8x7b")
    in_fp8 = replace(mixture, fp8_products=True, experts=replace(mixture.experts, bits=8))
    assert in_fp8.fp8_params(2) == 32 * 2 * 3 * 4096 * 14336
    assert replace(in_fp8, weight_bits=12).fp8_params(0) == mixture.dense_params / 2
    refuses("fp8_products", replace, mixture, fp8_products=True)


def attention_ps(times, **work):
    """The time of reading contexts: the iteration without it subtracted."""
    nothing = {**work, "decode_context": 0, "decode_repeated": 0}
    return times.iteration(Work(**work)) - times.iteration(Work(**nothing))


@pytest.mark.parametrize("affine", [Affine(7, 0, 99), Affine(100, 3, 99), Affine(5, 10, 99)])
def test_steps_to_reach_a_time_match_counting(affine):
    for elapsed in range(1, 400):
        counted = next(k for k in range(1, 400) if affine.total_ps(k) >= elapsed)
        assert affine.steps_to_reach(elapsed) == counted


def test_knots_interpolate_in_integers_beyond_both_ends():
    knots = Knots([(10, 100), (20, 205), (40, 200)])
    assert [knots(x) for x in (0, 10, 15, 20, 39, 40, 80)] == [0, 100, 150, 205, 205, 205, 205]
    assert (knots.piece(15)[2], knots.piece(25)[2]) == (20, UNBOUNDED)
    assert Knots([(5, 7)])(100) == 7


def reduced_ps(num_gpus, num_bytes, **sections):
    return all_reduce({"sections": sections}, ServerSpec("server", GPU, num_gpus))(num_bytes)


@pytest.mark.parametrize(("num_gpus", "sent"), [(1, 0), (2, 1000), (4, 1500), (8, 1750)])
def test_ring_all_reduce_sends_its_share_of_bytes(num_gpus, sent):
    assert reduced_ps(num_gpus, 1000) == sent * 500  # 500 ps a byte


def test_measured_all_reduces_scale_from_most_gpus():
    measured = {"axes": ["num_gpus", "bytes"], "columns": ["median_us"], "points": REDUCED_US}
    interpolated = [
        reduced_ps(n, num_bytes, all_reduce=measured)
        for n, num_bytes in ((1, 1000), (2, 1000), (4, 2000))
    ]
    assert interpolated == [0, 4_000_000, 9_000_000]
    assert reduced_ps(8, 1000, all_reduce=measured) == round(8e6 * (7 / 8) / (3 / 4))
    few = {**measured, "points": REDUCED_US[:2]}
    assert reduced_ps(4, 1000, all_reduce=few) == 6_000_000  # 3/4 to 1/2


def test_analytic_model_adds_two_all_reduces_per_layer():
    times = AnalyticCost(MODEL, ServerSpec("server", GPU, 4), Efficiencies(all_reduce_s=1e-6))
    # 5 tokens of 100 channels of 2 bytes: 1.5 times 1000 bytes at 500 ps each, and a microsecond
    assert times.iteration(Work(5, 5)) == pytest.approx(2 * 3 * (1_000_000 + 1500 * 500), abs=2)


MIXED = [((new, past, 0, 0), 10 * new + new * past) for new in (10, 20, 40) for past in (0, 100)]


def mixed_ps(points, *prefill, seqs=0, mean=0):
    return MixedTable(points, num_layers=1)(Work(seqs, seqs * mean, mean, prefill=prefill), saved=0)


def test_two_prompts_never_exceed_their_separate_times():
    points = [((10, 0, 0, 0), 100), ((20, 0, 0, 0), 400)]
    assert mixed_ps(points, (20, 0)) == 400
    assert mixed_ps(points, (10, 0), (10, 0)) == 200


def test_decodes_beside_two_prompts_count_once():
    """The square of a launch's prompt tokens, and 1,000 a decode: two launches for two prompts are
    cheaper than one, and the decodes go with one of them.
    """
    points = [((new, 0, seqs, 0), new**2 + 1000 * seqs) for new in (10, 20) for seqs in (0, 1, 4)]
    assert mixed_ps(points, (10, 0), (10, 0), seqs=4) == 2 * 10**2 + 4000


def test_prompts_of_a_latent_model_attend_by_its_latent_channels():
    model = read_model("deepseek-v2-lite")
    gpu = replace(GPU, memory_bandwidth=1e30, fp16_flops=1e12)
    times = AnalyticCost(model, ServerSpec("server", gpu, 1), Efficiencies())
    behind = times.iteration(Work(prefill=((100, 1000),))) - times.iteration(
        Work(prefill=((100, 0),))
    )
    channels = (model.head_size + model.latent.rope_size + model.latent.v_size) / 2
    flops = 4 * 100 * 1000 * model.num_heads * channels * model.num_layers
    assert behind == pytest.approx(flops / gpu.fp16_flops * PS, rel=1e-6)


def test_a_cost_without_times_for_tiers_says_so():
    refuses("has no time for transfers between tiers", OneMillisecond().transfer, ())


def test_new_tokens_attend_only_to_their_context():
    """A launch of 100, 10 a token and 1 a pair; so one launch for two prompts is cheaper than two
    launches.
    """
    points = [(key, 100 + ps) for key, ps in MIXED]
    assert mixed_ps(points, (10, 100), (10, 0)) == 100 + 10 * 20 + 10 * 100
    assert mixed_ps(points, (10, 100), (10, 100)) == 100 + 10 * 20 + 20 * 100


def special(**parts):
    """The times of MODEL with other parts on a GPU of 1 GB/s, whose peak bounds nothing."""
    gpu = GpuSpec("gpu", 10**9, 1e9, 1e30, 1e30, 1e30)
    byte_shares = {"byte_kv_bandwidth": 0.5, "byte_window_bandwidth": 0.25}
    return AnalyticCost(
        replace(MODEL, **parts), ServerSpec("server", gpu, 1), Efficiencies(**byte_shares)
    )


def test_windows_are_read_by_their_own_count():
    """All layers but one read 100 tokens, one layer 30; two sequences, of which one fills the
    window in 4 steps.
    """
    times = special(window={"size": 20, "num_layers": 1})
    work = Work(2, 100, 80, windows=(WindowReads(size=20, tokens=30, growing=1, steps=5),))
    plain, layers = special(), MODEL.num_layers
    layer_ps = MODEL.slot_bytes * 1000
    assert plain.iteration(work) - times.iteration(work) == (100 - 30) * layer_ps
    span = times.decode(work)
    assert (span.first_ps, span.growth_ps, span.steps) == (
        times.iteration(work),
        (2 * (layers - 1) + 1) * layer_ps,
        5,
    )
    for new, stored in ((7, 30), (30, 7), (5, 3), (20, 0), (25, 0)):
        assert pairs_of(new, stored, 20) == sum(min(stored + i + 1, 20) for i in range(new))


def test_fp8_kv_is_read_at_its_own_share_of_the_bandwidth():
    reads = {"decode_seqs": 2, "decode_context": 1000}
    assert attention_ps(special(kv_dtype_bytes=1), **reads) == attention_ps(special(), **reads)


def test_state_is_read_and_written_but_an_image_is_only_read():
    """Two sequences, whose state or image in one layer is as large as K and V of 100 tokens."""
    image, work = {"num_layers": 1, "num_tokens": 100}, Work(2, 1000, 500)
    state = special(states={"num_layers": 1, "state_bytes": 100 * MODEL.slot_bytes}).iteration(work)
    read_ps = 2 * 100 * MODEL.slot_bytes * 1000
    assert state - special(states=image).iteration(work) == read_ps
    wide, narrow = (
        special(states=image, kv_dtype_bytes=size).iteration(work) for size in (None, 1)
    )
    assert wide - narrow == read_ps // 2
    for given in ({}, {"state_bytes": 1, "num_tokens": 1}):
        refuses("give one of them", States, 1, **given)


def test_a_latent_is_stored_on_every_gpu_and_bound_by_memory_or_peak():
    latent = {"kv_rank": 512, "rope_size": 64, "v_size": 128}
    assert replace(MODEL, latent=latent).slot_bytes == 2 * 576
    model = replace(MODEL, latent=latent)
    gpu = GpuSpec("gpu", 10**9, 1e9, 1e30, 1e30, 1e30)
    times = [AnalyticCost(model, ServerSpec("server", gpu, n), Efficiencies()) for n in (1, 8)]
    reads = {"decode_seqs": 2, "decode_context": 1000}
    assert (
        attention_ps(times[0], **reads)
        == attention_ps(times[1], **reads)
        == 1000 * 1152 * MODEL.num_layers * 1000
    )
    slow = AnalyticCost(
        model, ServerSpec("server", replace(gpu, fp16_flops=1e9), 1), Efficiencies()
    )
    flops = 2 * MODEL.num_heads * (2 * 512 + 64) * MODEL.num_layers
    assert attention_ps(slow, **reads) == 1000 * flops * 10**3


def test_only_experts_with_tokens_are_read():
    experts = {"count": 8, "per_token": 2, "size": 100}
    times, model = special(experts=experts), replace(MODEL, experts=experts)
    expert = model.num_layers * model.expert_params * MODEL.dtype_bytes
    read = [
        times.iteration(Work(n, 0)) / 1000
        - model.dense_params * 2
        - 2 * model.vocab_size * model.hidden_size
        for n in (1, 2, 500)
    ]
    assert read == pytest.approx([2 * expert, 8 * (1 - 0.75**2) * expert, 8 * expert], rel=1e-9)
    assert (
        model.active_params - model.dense_params - model.vocab_size * model.hidden_size
        == 2 * expert // 2
    )


DECODES = Work(5, 1000, 400, num_requests=3)
PS_PER_US = 10**6


@pytest.mark.parametrize(
    ("efficiencies", "added_us"),
    [
        ({"overhead_s": 2e-3}, 2000),
        ({"overhead_per_request_s": 3e-6}, 3 * 3),
        ({"overhead_per_token_s": 3e-6}, 5 * 3),
        ({"overhead_per_sequence_s": 3e-6}, 5 * 3),
        ({"layer_s": 7e-6}, 3 * 7),
        ({"overhead_s": None, "overhead_per_request_s": None, "overhead_per_token_s": None}, 0),
    ],
)
def test_software_times_are_added_to_a_roofline(efficiencies, added_us):
    times = cost(**efficiencies)
    assert times.iteration(DECODES) - cost().iteration(DECODES) == added_us * PS_PER_US
    assert times.decode(DECODES).first_ps == times.iteration(DECODES)
    assert times.iteration(Work()) == 0


def test_policy_counters_add_their_time_to_a_roofline():
    work = DECODES._replace(extra=(("pages", 5),))
    assert cost(extra_s={"pages": 3e-6}).iteration(work) - cost().iteration(DECODES) == 15_000_000


@pytest.mark.parametrize(
    ("efficiencies", "tokens"),
    [
        ({}, 1000),
        ({"repeated_read": 0.25}, 1000 - 0.75 * 400),  # 400 tokens are read by another too
        ({"attention_bandwidth": 0.5}, 2000),
    ],
)
def test_reading_a_context_takes_its_bytes(efficiencies, tokens):
    """1,200 bytes a token at 1 GB/s."""
    work = {"decode_seqs": 5, "decode_context": 1000, "decode_repeated": 400}
    assert attention_ps(cost(**efficiencies), **work) == tokens * 1200 * 1000


def test_weights_are_read_or_multiplied_whichever_takes_longer():
    """A tiny model of P weights: 2 P bytes at 1 GB/s, or 2 P FLOPs a token."""
    weights = MODEL.num_layers * MODEL.layer_params + MODEL.vocab_size * MODEL.hidden_size
    assert cost().iteration(Work(1, 0)) == 2 * weights * 1000
    assert cost(weight_bandwidth=0.5).iteration(Work(1, 0)) == 2 * 2 * weights * 1000
    slow = cost(fp16_flops=1e9, linear_flops=0.5)
    assert slow.iteration(Work(7, 0)) == 2 * weights * 7 * 2000


def test_causal_attention_of_a_prompt_takes_its_flops():
    """4 FLOPs for each of 100 channels, layer, and pair of a query and a key."""
    times = cost(memory_bandwidth=1e30, fp16_flops=1e12, linear_flops=1e12, prefill_flops=0.5)
    pairs = 20 * 30 + 20 * 21 / 2  # 20 new tokens behind 30 stored ones
    assert times.iteration(Work(prefill=((20, 30),))) == pytest.approx(
        4 * 100 * 3 * pairs * 2, abs=1
    )


@pytest.mark.parametrize(
    ("times", "read_layers"),
    [
        (cost(), 3 * 1000),
        (cost(num_gpus=2), 3 * 500),
        (special(window={"size": 20, "num_layers": 1}), 2 * 1000 + 19),
    ],
)
def test_a_prompt_reads_what_is_stored_before_it_as_a_decode_does(times, read_layers):
    """A GPU whose peak bounds nothing; 400 bytes of each token and layer at 1 GB/s."""
    behind = times.iteration(Work(prefill=((5, 1000),))) - times.iteration(Work(prefill=((5, 0),)))
    assert behind == read_layers * 400 * 1000


def test_copies_read_and_write_memory():
    work = DECODES._replace(copies=((16, 3), (4, 2)))
    copied_ps = 2 * (16 * 3 + 4 * 2) * 1200 * 1000
    assert cost().iteration(work) - cost().iteration(DECODES) == copied_ps


def test_swaps_take_a_call_for_each_block_layer_and_k_or_v():
    """Of 16 tokens 3,200 bytes at 1 GB/s, and 4 us a call, six calls a block; hidden but for a
    third.
    """
    gpu = GpuSpec("gpu", 10**9, 1e9, 1e30, host_bandwidth=1e9, link_bandwidth=1e30)
    times = AnalyticCost(MODEL, ServerSpec("server", gpu, 1), Efficiencies(copy_s=4e-6))
    work = DECODES._replace(
        moves=(
            Moved(source="device", target="host", length=16, num_transfers=2),
            Moved(source="host", target="device", length=16, num_transfers=1),
        )
    )
    swap_ps = 3 * 6 * (3_200_000 + 4_000_000)
    assert swap_ps < cost().iteration(DECODES)
    assert times.iteration(work) - times.iteration(DECODES) == swap_ps // 3


def test_roofline_hides_tier_transfers_behind_computing():
    gpu = GpuSpec("gpu", 10**9, 1e9, 1e30, host_bandwidth=1e9, link_bandwidth=1e30)
    tiers = {"dram": TierSpec(1, latency_s=1e-4)}
    times = AnalyticCost(MODEL, ServerSpec("server", gpu, 1, tiers=tiers), Efficiencies())
    move = Moved(source="device", target="dram", length=16, num_transfers=3)
    moving_ps = 100 * PS_PER_US + 3 * 16 * 1200 * 1000
    assert times.transfer((move,)) == moving_ps
    added = times.iteration(DECODES._replace(moves=(move,))) - times.iteration(DECODES)
    assert added == moving_ps // 3


def test_queries_of_layers_with_windows_have_their_own_size():
    """As a share of those of full attention; 1 if the model states no size of its own."""
    window = Window(size=8, num_layers=2, num_kv_heads=4, head_size=50)
    model = replace(MODEL, window=window)
    full, windowed = model.groups
    assert _query_share(model, full) == 1
    assert _query_share(model, windowed) == 2
    assert _query_share(replace(model, window=replace(window, head_size=None)), windowed) == 1
    assert _query_share(MODEL, windowed) == 1
