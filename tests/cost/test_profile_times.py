"""Times of a profile, added up by hand: every section and every choice, exactly."""

from dataclasses import replace

import pytest
from arithmetic_profile import (
    GPU,
    KV_BYTES,
    LAYERS,
    MODEL,
    all_reduce,
    arithmetic_profile,
    block_copy,
    cache_write,
    contiguous_attention,
    decode_attention,
    launched_eager,
    launched_graph,
    linear,
    once_per_iteration,
    output_head,
    paper_attention,
    prefill_attention,
    section,
    swap,
)
from charged_times import apart
from refusals import refuses

from testbed.core.layers import Experts, States, Window
from testbed.core.slots import DEVICE, HOST
from testbed.core.specs import ServerSpec, TierSpec
from testbed.cost.model import UNBOUNDED, Moved, WindowReads, Work
from testbed.cost.profile import Choices, ProfileCost
from testbed.cost.sections import THIS_ENGINE

PS_PER_US = 10**6
DECODES = Work(5, 900, 300, num_requests=3)
PROMPT = Work(prefill=((40, 64),), num_requests=1)


def cost_of(profile=None, server=None, **values):
    profile = profile or arithmetic_profile(server.num_gpus if server else 1)
    choices, software = apart(values)
    return ProfileCost(MODEL, server, profile, Choices(**choices), software)


def server(num_gpus=1, **tiers):
    return ServerSpec("server", GPU, num_gpus, tiers=tiers)


def us(cost, work):
    return cost.iteration(work) / PS_PER_US


def layers_us(num_tokens, num_rows, padded=None):
    """All that depends on counts of tokens and rows of output alone."""
    padded = padded or num_tokens
    once = output_head(num_rows) + once_per_iteration(padded)
    return LAYERS * (linear(padded) + cache_write(num_tokens)) + once


def software_us(num_tokens, num_requests):
    """An iteration of 7 us, 2 a request and a half a token."""
    return 7 + 2 * num_requests + num_tokens / 2


DECODES_US = (
    layers_us(5, 5)
    + LAYERS * decode_attention(5, 900)
    + (-2 - 5 / 16)  # launched as a graph
    + software_us(5, 3)
)
PROMPT_US = (
    layers_us(40, 1) + LAYERS * prefill_attention(40, 64) + launched_eager(40) + software_us(40, 1)
)


def test_an_iteration_of_decodes_is_the_sum_of_its_parts():
    assert launched_graph(5) == -2 - 5 / 16
    assert us(cost_of(), DECODES) == DECODES_US


def test_an_iteration_of_a_prompt_is_the_sum_of_its_parts():
    assert us(cost_of(), PROMPT) == PROMPT_US


def test_drafts_are_verified_as_prompts_by_this_engine_and_as_decodes_by_others():
    engine = arithmetic_profile()
    engine["fingerprint"]["system"] = THIS_ENGINE
    assert cost_of(engine).verifies_as_prompts
    assert not cost_of().verifies_as_prompts


def test_prompts_and_decodes_are_added_where_no_mixed_batch_was_measured():
    work = Work(5, 900, 300, prefill=((40, 64),), num_requests=4)
    attention = decode_attention(5, 900) + prefill_attention(40, 64)
    expected = layers_us(45, 6) + LAYERS * attention + launched_eager(45) + software_us(45, 4)
    assert us(cost_of(), work) == expected


def test_several_prompts_take_the_rate_of_a_batch_and_no_less_than_the_slowest():
    """Four prompts at once take three times as long as one."""
    many = Work(prefill=((40, 64), (40, 64), (16, 0)), num_requests=3)
    at_rate = 3 / 4 * (2 * prefill_attention(40, 64) + prefill_attention(16, 0))
    rest = layers_us(96, 3) + launched_eager(96) + software_us(96, 3)
    assert us(cost_of(), many) == rest + LAYERS * at_rate
    long_and_short = Work(prefill=((1024, 0), (16, 0)), num_requests=2)
    slowest = prefill_attention(1024, 0)
    assert slowest > 3 / 4 * (slowest + prefill_attention(16, 0)) - 10
    rest = layers_us(1040, 2) + (100 - 512 / 8) + software_us(1040, 2)  # level beyond 512 tokens
    expected = rest + LAYERS * max(slowest, 3 / 4 * (slowest + prefill_attention(16, 0)))
    assert us(cost_of(), long_and_short) == expected


def test_nothing_to_do_takes_no_time():
    assert cost_of().iteration(Work()) == 0


@pytest.mark.parametrize(
    ("choices", "attention"),
    [
        ({"spread": "equal"}, decode_attention(5, 900, ragged=False)),
        ({"block_size": 8}, decode_attention(5, 900, block_size=8)),
        ({"attention_scale": 1.5}, 1.5 * decode_attention(5, 900)),
    ],
)
def test_decode_attention_follows_the_choice(choices, attention):
    expected = DECODES_US + LAYERS * (attention - decode_attention(5, 900))
    assert us(cost_of(**choices), DECODES) == expected


@pytest.mark.parametrize(
    ("kernel", "attention"), [("paper", paper_attention), ("contiguous", contiguous_attention)]
)
def test_other_kernels_have_sections_and_launches_of_their_own(kernel, attention):
    expected = DECODES_US + LAYERS * (attention(5, 900) - decode_attention(5, 900)) + (2 + 5 / 16)
    assert us(cost_of(kernel=kernel), DECODES) == expected


@pytest.mark.parametrize(("share", "saved"), [(0.5, 50), (0.28, 72), (1.0, 0)])
def test_repeated_reads_cost_their_share(share, saved):
    """100 tokens of shared blocks are read by another sequence too, at 1/4 us a token."""
    work = DECODES._replace(decode_repeated=100)
    assert us(cost_of(repeated_read=share), work) == DECODES_US - LAYERS * saved / 4


@pytest.mark.parametrize(
    ("choices", "added"),
    [
        ({"overhead_s": 20e-6}, 20 - 7),
        ({"overhead_per_worker_s": 3e-6}, 3),
        ({"overhead_per_request_s": 4e-6}, 3 * (4 - 2)),
        ({"overhead_per_input_s": 4e-6}, 3 * 4),
        ({"overhead_per_token_s": 1.5e-6}, 5 * (1.5 - 0.5)),
        ({"overhead_per_sequence_s": 3e-6}, 5 * 3),
    ],
)
def test_software_times_replace_those_of_the_profile_or_come_on_top(choices, added):
    assert us(cost_of(**choices), DECODES) == DECODES_US + added


def test_software_times_of_workers_and_inputs_count_on_each_gpu():
    both = cost_of(server=server(2))
    workers = cost_of(server=server(2), overhead_per_worker_s=3e-6, overhead_per_input_s=4e-6)
    assert us(workers, DECODES) - us(both, DECODES) == 2 * 3 + 2 * 3 * 4


def test_forks_cost_a_number_of_sequences():
    cost = cost_of(overhead_per_sequence_s=3e-6, sequences_per_fork=2.5)
    assert us(cost, DECODES._replace(forks=4)) - us(cost, DECODES) == 4 * 2.5 * 3


def test_policy_counters_take_the_configured_time():
    cost = cost_of(extra_s={"pages": 3e-6, "maps": 20e-6})
    work = DECODES._replace(extra=(("pages", 5), ("maps", 2)))
    assert us(cost, work) == DECODES_US + 5 * 3 + 2 * 20
    refuses("count 'pages': has no cost", cost_of().iteration, work)


@pytest.mark.parametrize(
    ("num_tokens", "padded"), [(1, 2), (2, 2), (3, 16), (16, 16), (17, 17), (90, 90)]
)
def test_small_batches_are_padded_to_the_next_graph(num_tokens, padded):
    """Stored tokens and rows of output are not padded."""
    work = Work(num_tokens, 100 * num_tokens, 100)
    difference = us(cost_of(cuda_graph_sizes=[16, 2]), work) - us(cost_of(), work)
    assert difference == layers_us(num_tokens, num_tokens, padded) - layers_us(
        num_tokens, num_tokens
    )


def test_graph_sizes_of_the_profile_are_used_unless_others_are_configured():
    profile = arithmetic_profile() | {"cuda_graph_sizes": [8]}
    padded = DECODES_US + layers_us(5, 5, 8) - layers_us(5, 5)
    assert us(cost_of(profile), DECODES) == padded
    assert us(cost_of(profile, cuda_graph_sizes=[]), DECODES) == DECODES_US


def test_tensor_parallelism_adds_two_all_reduces_and_a_wait_a_layer():
    work_us = DECODES_US + 2 * LAYERS * all_reduce(5 * 96 * 2)  # fp16 activations of 5 tokens
    assert us(cost_of(server=server(2)), DECODES) == work_us
    waiting = cost_of(server=server(2), parallel_layer_s={2: 9e-6})
    assert us(waiting, DECODES) == work_us + LAYERS * 9


def test_a_section_that_another_includes_is_not_counted_again():
    profile = arithmetic_profile()
    profile["sections"]["decode_attention"]["includes"] = ["cache_write"]
    assert us(cost_of(profile), DECODES) == DECODES_US - LAYERS * cache_write(5)


def test_block_copies_are_added():
    work = DECODES._replace(copies=((16, 3), (8, 7)))
    assert us(cost_of(), work) == DECODES_US + block_copy(16, 3) + block_copy(8, 7)


def test_copies_between_measured_lengths_are_interpolated():
    of_12_slots = DECODES._replace(copies=((12, 10),))  # 8 and 16 were measured
    assert us(cost_of(), of_12_slots) == DECODES_US + block_copy(12, 10)


def test_copies_longer_than_any_measured_are_taken_as_several():
    of_40_slots = DECODES._replace(copies=((40, 2),))  # as three of 16 each
    assert us(cost_of(), of_40_slots) == DECODES_US + block_copy(16, 6)


OUT, IN = (
    Moved(source=DEVICE, target=HOST, length=16, num_transfers=20),
    Moved(source=HOST, target=DEVICE, length=16, num_transfers=10),
)
FUSED_US = swap("fused", "out", 16, 20) + swap("fused", "in", 16, 10)
COMPUTING_US = DECODES_US - 2 * 3  # requests are served after the swaps have been waited for


def test_swaps_hide_behind_computing_but_for_one_layer():
    assert COMPUTING_US > FUSED_US
    work = DECODES._replace(moves=(OUT, IN))
    assert us(cost_of(), work) == DECODES_US + FUSED_US / LAYERS


def test_computing_hides_behind_long_swaps():
    many = Moved(source=DEVICE, target=HOST, length=16, num_transfers=600)
    swap_us = swap("fused", "out", 16, 600)
    assert swap_us > COMPUTING_US
    work = DECODES._replace(moves=(many,))
    expected = swap_us + COMPUTING_US / LAYERS + 2 * 3
    assert us(cost_of(), work) == pytest.approx(expected, abs=1e-6)


def test_copies_beyond_the_drivers_queue_are_waited_for():
    """Per block, layer, K and V: 2 x 4 x 160 = 1,280 copies, of which 1,024 are pending."""
    work = DECODES._replace(
        moves=(Moved(source=DEVICE, target=HOST, length=16, num_transfers=160),)
    )
    swap_us = swap("per block", "out", 16, 160)
    waiting = swap_us * 256 / 1280
    pending = swap_us - waiting
    slow, fast = max(COMPUTING_US, pending), min(COMPUTING_US, pending)
    expected = waiting + slow + fast / LAYERS + 2 * 3
    assert us(cost_of(swap="per block"), work) == pytest.approx(expected, abs=1e-5)


def test_all_in_waits_for_swap_ins_before_computing():
    cost = cost_of(swap_waits="all in")
    work = DECODES._replace(moves=(OUT, IN))
    assert us(cost, work) == DECODES_US + swap("fused", "in", 16, 10)
    long_out = Moved(source=DEVICE, target=HOST, length=16, num_transfers=600)
    both_us = swap("fused", "out", 16, 600) + swap("fused", "in", 16, 10)
    assert us(cost, DECODES._replace(moves=(long_out, IN))) == both_us + 2 * 3


def test_unmeasured_swaps_take_bytes_over_the_data_sheets_link():
    cost = cost_of(arithmetic_profile(swap=None), server())
    moved_us = 16 * 20 * KV_BYTES / 8e9 * 1e6  # over the data sheet's link to the host
    expected = DECODES_US + moved_us / LAYERS
    assert us(cost, DECODES._replace(moves=(OUT,))) == pytest.approx(expected, abs=1e-5)
    assert "not measured" in cost.fingerprint["swap"]


TIERS = {"dram": TierSpec(1), "nvme": TierSpec(1, 3e9, 1e9, latency_s=1e-4, extent_s=1e-5)}


@pytest.mark.parametrize(
    ("move", "expected_us"),
    [
        (
            Moved(source=DEVICE, target="dram", length=8, num_transfers=30),
            8 * 30 * KV_BYTES / 8e9 * 1e6,
        ),
        (
            Moved(source="dram", target=DEVICE, length=8, num_transfers=6),
            8 * 6 * KV_BYTES / 8e9 * 1e6,
        ),
        # Each of 11 runs takes 10 us; the slower end counts: nvme writes 1 GB/s and reads 3.
        (
            Moved(source="dram", target="nvme", length=8, num_transfers=11),
            100 + 11 * 10 + 8 * 11 * KV_BYTES / 1e9 * 1e6,
        ),
        (
            Moved(source="nvme", target="dram", length=4, num_transfers=2),
            100 + 2 * 10 + 4 * 2 * KV_BYTES / 3e9 * 1e6,
        ),
        # a swap, which is no transfer of tiers
        (Moved(source=DEVICE, target=HOST, length=16, num_transfers=3), 0),
    ],
)
def test_transfers_between_tiers_take_latency_runs_and_bytes(move, expected_us):
    cost = cost_of(server=server(**TIERS))
    assert cost.transfer((move,)) / PS_PER_US == pytest.approx(expected_us, abs=1e-4)


def test_transfers_between_the_same_tiers_wait_once():
    cost = cost_of(server=server(**TIERS))
    move = Moved(source=DEVICE, target="nvme", length=8, num_transfers=3)
    each_us = 3 * 10 + 8 * 3 * KV_BYTES / 1e9 * 1e6
    assert cost.transfer((move, move)) / PS_PER_US == pytest.approx(100 + 2 * each_us, abs=1e-4)


def test_transfers_in_an_iteration_hide_as_swaps_do():
    cost = cost_of(server=server(**TIERS))
    move = Moved(source="nvme", target=DEVICE, length=8, num_transfers=1)
    moved_us = cost.transfer((move,)) / PS_PER_US
    work = DECODES._replace(moves=(move,))
    expected = DECODES_US + min(moved_us, COMPUTING_US) / LAYERS
    assert us(cost, work) == pytest.approx(expected, abs=1e-5)
    refuses("no such tier", cost_of(server=server()).transfer, (move,))


def test_decodes_in_a_row_grow_by_a_token_of_each():
    span = cost_of().decode(DECODES)
    assert span.first_ps == DECODES_US * PS_PER_US
    assert span.growth_ps == LAYERS * 5 / 4 * PS_PER_US
    assert span.steps == UNBOUNDED, "one line from the second knot on"


MIXED = section(
    "prefill_tokens past_tokens num_seqs mean_context",
    [
        [new, past, num_seqs, mean, 5 + new / 16 + past / 128 + num_seqs * (1 + mean / 64)]
        for new in (16, 128)
        for past in (0, 512)
        for num_seqs, means in ((0, (0,)), (4, (16, 1024)), (32, (16, 1024)))
        for mean in means
    ],
)


@pytest.mark.parametrize(
    ("kernel", "spread"), [("paged", "ragged"), ("paged", "equal"), ("paper", "ragged")]
)
def test_mixed_batch_times_are_used_for_our_kernel_only(kernel, spread):
    profile = arithmetic_profile(mixed_attention=MIXED)
    work = Work(8, 8 * 64, 64, prefill=((32, 256),), num_requests=9)
    total_us = us(cost_of(profile, kernel=kernel, spread=spread), work)
    rest = layers_us(40, 9) + launched_eager(40) + software_us(40, 9)
    mixed = 5 + 32 / 16 + 256 / 128 + 8 * (1 + 64 / 64)
    added = paper_attention(8, 512) + prefill_attention(32, 256)
    assert total_us == rest + LAYERS * (mixed if kernel == "paged" else added)


def test_unequal_lengths_take_a_share_of_the_way_to_the_longest():
    """A quarter of the way from sequences as long as their mean to sequences as long as the
    longest.
    """
    points = [[0, 0, 1, 100, 1000, 0.25]]
    unequal = section("prefill_tokens past_tokens num_seqs mean_percent max_context", points)
    profile = arithmetic_profile(unequal_lengths=unequal | {"default": 0.25})
    mean, longest = (decode_attention(5, context, ragged=False) for context in (900, 5 * 300))
    attention = mean + (longest - mean) / 4
    expected = DECODES_US + LAYERS * (attention - decode_attention(5, 900))
    assert us(cost_of(profile), DECODES) == expected
    equal = DECODES_US + LAYERS * (mean - decode_attention(5, 900))
    assert us(cost_of(profile, spread="equal"), DECODES) == equal


GROUPS_MODEL = replace(
    MODEL,
    window=Window(64, 1),
    states=States(2, state_bytes=512, params=99),
    experts=Experts(8, 2, 50, num_dense_layers=1),
)  # of four layers two have a state, one a window, one reads all


def state_decode(num_seqs):
    return 3 + num_seqs


def window_decode(num_seqs, context):
    """Within the window of 64 tokens; beyond it every sequence takes 20 us."""
    return num_seqs + context / 4 if context <= 64 * num_seqs else 20 * num_seqs


def experts(num_tokens, skewed=False):
    return (4 + num_tokens / 8) * (2 if skewed else 1)


def groups_cost(model=GROUPS_MODEL, **choices):
    prompts = section("num_seqs new_tokens past_tokens", [[1, 1, 0, 2.25], [1, 401, 0, 102.25]])
    windows = [
        [n, n * mean, window_decode(n, n * mean)] for n in (1, 9) for mean in (1, 64, 65, 400)
    ]
    by_distribution = [
        [name, n, experts(n, name == "skewed")] for name in ("balanced", "skewed") for n in (1, 401)
    ]
    profile = arithmetic_profile(
        model=model,
        window_decode_attention=section("num_seqs total_context", windows),
        window_prefill_attention=prompts,
        state_decode=section("num_seqs", [[n, state_decode(n)] for n in (1, 9)]),
        state_prefill=prompts,
        experts=section("distribution num_tokens", by_distribution),
    )
    return ProfileCost(model, None, profile, Choices(**choices))


def test_each_kv_group_is_read_in_its_layers():
    """Five sequences, of which two read 30 tokens and three a whole window, 20 us each."""
    window = WindowReads(64, tokens=3 * 64 + 2 * 30, growing=2, steps=34)
    work = DECODES._replace(windows=(window,))
    in_window = 3 * 20 + 2 / 5 * window_decode(5, 5 * 30)
    attention = decode_attention(5, 900) + in_window + 2 * state_decode(5)
    parts = attention + 3 * experts(5) + launched_graph(5) + software_us(5, 3)
    assert us(groups_cost(), work) == layers_us(5, 5) + parts
    assert groups_cost().windows == (64,)


def test_layers_that_all_have_windows_have_no_other_attention():
    """Five sequences of 30 tokens, then of 31: each layer takes a quarter more for each token."""
    cost = groups_cost(replace(MODEL, window=Window(64, LAYERS)))
    works = [
        Work(5, 5 * n, n, num_requests=3, windows=(WindowReads(64, 5 * n, 5, 65 - n),))
        for n in (30, 31)
    ]
    first_us, next_us = (us(cost, work) for work in works)
    rest = layers_us(5, 5) + launched_graph(5) + software_us(5, 3)
    assert first_us == rest + LAYERS * window_decode(5, 5 * 30)
    assert cost.decode(works[0])[:2] == (cost.iteration(works[0]), (next_us - first_us) * PS_PER_US)


def test_prompts_are_computed_in_each_group():
    """A prompt of 40 tokens takes 12 us in a layer of a window or of a state."""
    attention = prefill_attention(40, 0) + 12 + 2 * 12
    parts = attention + 3 * experts(40) + launched_eager(40) + software_us(40, 1)
    work = Work(prefill=((40, 0),), num_requests=1)
    assert us(groups_cost(), work) == layers_us(40, 1) + parts


def test_experts_take_the_selected_distribution():
    window = WindowReads(64, tokens=5 * 64, growing=0, steps=UNBOUNDED)
    work = DECODES._replace(windows=(window,))
    skewed, balanced = us(groups_cost(experts="skewed"), work), us(groups_cost(), work)
    assert skewed - balanced == 3 * experts(5)


def test_stepwise_sections_take_the_next_measured_count():
    """5 tokens take the time of 64."""
    profile = arithmetic_profile()
    profile["sections"]["linear"]["between"] = "next"
    assert us(cost_of(profile), DECODES) == DECODES_US + LAYERS * (linear(64) - linear(5))


@pytest.mark.parametrize(
    ("choices", "system"),
    [
        ({}, "engine"),  # this project's, if `testbed calibrate` measured it
        ({"overhead_s": 1e-3}, None),  # the user's own
        ({"overhead_s": 1e-3, "name": "other"}, "other"),
    ],
)
def test_software_times_name_their_system(choices, system):
    assert cost_of(**choices).software == system


def test_software_times_fitted_on_a_log_name_no_system():
    profile = arithmetic_profile()
    profile["fingerprint"]["software_fitted_on"] = {"log": "hash"}
    assert cost_of(profile).software is None
    assert cost_of(arithmetic_profile(overhead=None)).software is None


WHOLE_PROMPTS = section(
    "num_seqs new_tokens past_tokens", [[1, 16, 0, 8.0], [1, 128, 0, 36.0], [1, 1040, 0, 948.0]]
)  # 1/4 us a token up to 128 tokens, then 1 us


@pytest.mark.parametrize(
    ("new", "past", "attention"),
    [
        (40, 0, 14),
        (40, 500, 540 - 500),  # as much more as the longer prompt takes
        (40, 40, 14),  # at least what the new tokens take alone: the difference is 10 us
    ],
)
def test_tokens_after_stored_ones_take_the_difference_of_whole_prompts(new, past, attention):
    cost = cost_of(arithmetic_profile(prefill_attention=WHOLE_PROMPTS))
    work = Work(prefill=((new, past),), num_requests=1)
    rest = layers_us(new, 1) + launched_eager(new) + software_us(new, 1)
    assert us(cost, work) == rest + LAYERS * attention


def batch_attention(count, new):
    """Of prompts of one length, measured in several numbers."""
    return 2 + count * (2 + new / 4)


def test_prompts_take_their_shares_of_batches_of_prompts_like_them():
    points = [
        [count, new, 0, batch_attention(count, new)] for count in (1, 2, 4, 8) for new in (16, 1040)
    ]
    batches = section("num_seqs new_tokens past_tokens", points)
    cost = cost_of(arithmetic_profile(prefill_attention=batches))
    work = Work(prefill=((40, 0), (16, 0), (16, 48)), num_requests=3)
    behind = batch_attention(3, 64) / 3 - batch_attention(3, 48) / 3
    shares = (batch_attention(3, 40) + batch_attention(3, 16)) / 3
    shares += max(behind, batch_attention(3, 16) / 3)
    rest = layers_us(72, 3) + launched_eager(72) + software_us(72, 3)
    assert us(cost, work) == pytest.approx(rest + LAYERS * shares, abs=1e-5)


def mixed_us(new, past, num_seqs, mean):
    return 5 + new / 16 + past / 128 + num_seqs * (1 + mean / 64)


@pytest.mark.parametrize("prefill_section", ["measured", None])
def test_several_prompts_of_a_mixed_batch_cost_as_one_with_their_tokens_and_pairs(
    prefill_section,
):
    """Or less, if by themselves they take less than that one prompt."""
    changes = {} if prefill_section else {"prefill_attention": None}
    profile = arithmetic_profile(mixed_attention=MIXED, **changes)
    work = Work(8, 8 * 64, 64, prefill=((32, 256), (32, 0)), num_requests=10)
    joined = mixed_us(64, 128, 0, 0)  # 32 x 256 pairs with stored tokens are 64 x 128
    if prefill_section:
        rate = 3 / 4 * (prefill_attention(32, 256) + prefill_attention(32, 0))
        alone = max(rate, prefill_attention(32, 256))
    else:
        alone = mixed_us(32, 256, 0, 0) + mixed_us(32, 0, 0, 0)
    attention = mixed_us(64, 128, 8, 64) + min(joined, alone) - joined
    rest = layers_us(72, 10) + launched_eager(72) + software_us(72, 10)
    assert us(cost_of(profile), work) == rest + LAYERS * attention


def test_unequal_lengths_count_in_mixed_batches_too():
    points = [[32, 256, 8, 100, 1000, 0.25]]
    unequal = section("prefill_tokens past_tokens num_seqs mean_percent max_context", points)
    profile = arithmetic_profile(mixed_attention=MIXED, unequal_lengths=unequal | {"default": 0.25})
    work = Work(8, 8 * 64, 256, prefill=((32, 256),), num_requests=9)
    mean, longest = mixed_us(32, 256, 8, 64), mixed_us(32, 256, 8, 256)
    rest = layers_us(40, 9) + launched_eager(40) + software_us(40, 9)
    assert us(cost_of(profile), work) == rest + LAYERS * (mean + (longest - mean) / 4)


def test_unmeasured_all_reduces_are_a_ring_over_the_links():
    cost = cost_of(arithmetic_profile(2, all_reduce=None), server(2))
    sent_us = 5 * 96 * 2 / 100e9 * 1e6  # 2 x 1/2 of the activations of 5 tokens
    assert us(cost, DECODES) == pytest.approx(DECODES_US + 2 * LAYERS * sent_us, abs=1e-5)
    assert cost.fingerprint["all_reduce"] == "not measured: a ring over 100 GB/s, without latency"
    over_pcie = ServerSpec("server", replace(GPU, link_bandwidth=8e9), 2)
    slow = cost_of(arithmetic_profile(2, all_reduce=None), over_pcie)
    assert "over PCIe that is too fast" in slow.fingerprint["all_reduce"]
