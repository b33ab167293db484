"""Prices small enough to be worked out by hand: of data sheets, copies, prompts and mixed batches."""

import pytest

from testbed.core.errors import InputError
from testbed.core.request import PS
from testbed.core.specs import GpuSpec, ModelSpec, ServerSpec
from testbed.cost.analytic import AnalyticCost, Efficiencies
from testbed.cost.choices import Choices
from testbed.cost.layer_prices import Layers
from testbed.cost.mixed_table import MixedTable
from testbed.cost.model import Affine, Work
from testbed.cost.move_tables import AllReduce, SizedTable
from testbed.cost.prefill_table import PrefillTable
from testbed.cost.unequal_lengths import Lengths, UnequalLengths

MODEL = ModelSpec("tiny", 3, 100, 4, 4, 25, 256, 2, 100, 512)  # 1,200 bytes of K and V a token
NO_DECODES = Lengths(0, 0, 0)


def cost(num_gpus=1, memory_bandwidth=1e9, fp16_flops=1e30, link_bandwidth=1e30, **efficiencies):
    gpu = GpuSpec("gpu", 10**9, memory_bandwidth, fp16_flops, 1e30, link_bandwidth)
    return AnalyticCost(MODEL, ServerSpec("server", gpu, num_gpus), Efficiencies(**efficiencies))


def attention_ps(prices, **work):
    """What reading contexts takes: the iteration without it subtracted."""
    nothing = {**work, "decode_context": 0, "decode_repeated": 0}
    return prices.iteration(Work(**work)) - prices.iteration(Work(**nothing))


def test_every_gpu_reads_its_own_part_of_the_contexts():
    read = {"decode_seqs": 2, "decode_context": 1000}
    assert attention_ps(cost(1), **read) == 1000 * 1200 * 1000  # 1,000 ps a byte at 1 GB/s
    assert attention_ps(cost(2), **read) == 1000 * 600 * 1000


def test_a_repeated_read_costs_its_share_of_a_first_one():
    read = {"decode_seqs": 2, "decode_context": 1000, "decode_repeated": 400}
    assert attention_ps(cost(repeated_read=0.25), **read) == (600 + 100) * 1200 * 1000
    assert attention_ps(cost(), **read) == 1000 * 1200 * 1000


def test_software_time_is_that_of_the_iteration_and_of_every_resident_request():
    prices, plain = cost(overhead_s=1e-3, overhead_per_request_s=1e-4), cost()
    work = Work(decode_seqs=4, decode_context=4, num_requests=3)
    assert prices.iteration(work) - plain.iteration(work) == round((1e-3 + 3e-4) * PS)
    assert prices.decode(work).first_ps == prices.iteration(work)


def test_what_a_policy_counts_is_paid_as_often_as_it_was_counted_and_never_unpriced():
    work = Work(decode_seqs=1, decode_context=1)
    mapped = work._replace(extra=(("pages_mapped", 5),))
    assert cost(extra_s={"pages_mapped": 2e-6}).iteration(mapped) - cost().iteration(work) == 5 * 2_000_000
    with pytest.raises(InputError, match=r"pages_mapped.*knows none"):
        cost().iteration(mapped)


@pytest.mark.parametrize("affine", [Affine(7, 0, 99), Affine(100, 3, 99), Affine(5, 10, 99)])
def test_the_fewest_steps_that_reach_a_moment_are_those_that_counting_finds(affine):
    for elapsed in range(1, 400):
        counted = next(k for k in range(1, 400) if affine.total_ps(k) >= elapsed)
        assert affine.steps_to_reach(elapsed) == counted


def test_no_copy_is_free_and_a_long_extent_counts_as_whole_largest_blocks():
    table = SizedTable([((16, 1), 100), ((16, 2), 150), ((256, 1), 300), ((256, 2), 500)])
    assert table(16, 0) == 0
    assert table(256, 2) == table(257, 1) == table(512, 1) == 500


def test_an_all_reduce_is_carried_from_the_largest_measured_number_of_gpus():
    points = [[2, 1000, 8.0], [4, 1000, 20.0]]
    section = {"axes": ["num_gpus", "bytes"], "columns": ["us"], "points": points}
    server = ServerSpec("server", GpuSpec("gpu", 10**9, 1e9, 1e12, 1e9, 1e9), 8)
    assert AllReduce({"sections": {"all_reduce": section}}, server)(1000) == round(20e6 * (7 / 8) / (3 / 4))


def test_all_reduces_are_two_a_layer_of_two_bytes_a_channel():
    def layers(num_gpus):
        flat = {"axes": ["tokens"], "columns": ["us"], "points": [[1, 1.0]]}
        profile = {"model": {"name": "tiny"}, "sections": dict.fromkeys(("linear", "cache_write", "output_head"), flat)}
        server = ServerSpec("s", GpuSpec("g", 10**9, 1e9, 1e12, 1e9, link_bandwidth=1e9), num_gpus)
        return Layers(profile, MODEL, server, Choices())

    # 7 tokens of 100 channels of 2 bytes, on 2 GPUs as many bytes sent as there are: 1,000 ps each
    assert layers(2).price(7, 1) - layers(1).price(7, 1) == 2 * 3 * 7 * 100 * 2 * 1000


def test_prompts_measured_whole_take_behind_a_past_what_the_whole_takes_beyond_it():
    table = PrefillTable([((1, n, 0), n * n) for n in (1, 100, 200, 300)], num_layers=1)
    assert table(((100, 200),)) == 300**2 - 200**2


def test_a_bin_that_was_not_measured_has_the_default_share():
    bins = UnequalLengths({"default": 0.25, "points": [[0, 0, 8, 50, 100, 0.5], [0, 0, 64, 100, 100, 0.75]]})
    assert bins.share(0, 0, Lengths(8, 400, 100)) == 0.5
    assert bins.share(0, 0, Lengths(8, 800, 100)) == 0.25


MIXED = [((new, past, 0, 0), 10 * new + new * past) for new in (10, 20, 40) for past in (0, 100)]
BESIDE = [((new, past, 4, mean), 1000 + mean) for new in (10, 20, 40) for past in (0, 100) for mean in (50, 150)]


def test_two_prompts_take_no_longer_than_one_after_the_other():
    table = MixedTable([((10, 0, 0, 0), 100), ((20, 0, 0, 0), 400)], num_layers=1)
    assert table(((20, 0),), NO_DECODES, 0) == 400
    assert table(((10, 0), (10, 0)), NO_DECODES, 0) == 200


def test_new_tokens_attend_to_their_own_past_alone():
    """A launch of 100, 10 a token and 1 a pair; so one launch for two prompts is cheaper than two launches."""
    table = MixedTable([(key, 100 + ps) for key, ps in MIXED], num_layers=1)
    assert table(((10, 100), (10, 0)), NO_DECODES, 0) == 100 + 10 * 20 + 10 * 100
    assert table(((10, 100), (10, 100)), NO_DECODES, 0) == 100 + 10 * 20 + 20 * 100


def test_below_the_first_measured_context_its_time_holds():
    table = MixedTable(MIXED + BESIDE, num_layers=1)
    assert table(((10, 0),), Lengths(4, 4 * 100, 100), 0) == 1100
    assert table(((10, 0),), Lengths(4, 4 * 10, 10), 0) == table(((10, 0),), Lengths(4, 4 * 50, 50), 0) == 1050
