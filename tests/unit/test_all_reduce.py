"""All-reduces: a ring by the data sheet, or measured, perhaps on fewer GPUs than asked for."""

import pytest

from testbed.core.specs import GpuSpec, ModelSpec, ServerSpec
from testbed.cost.analytic import AnalyticCost, Efficiencies
from testbed.cost.model import Work
from testbed.cost.tables import AllReduce

GPU = GpuSpec("gpu", 10**9, 1e30, 1e30, 1e8, link_bandwidth=2e9)
MEASURED = {"axes": ["num_gpus", "bytes"], "columns": ["median_us"], "points": [[2, 1000, 8.0], [2, 3000, 10.0]]}


def reduced_ps(num_gpus, num_bytes, **sections):
    return AllReduce({"sections": sections}, ServerSpec("server", GPU, num_gpus))(num_bytes)


@pytest.mark.parametrize(("num_gpus", "sent"), [(1, 0), (2, 1000), (4, 1500), (8, 1750)])
def test_a_ring_sends_two_n_less_one_of_n_parts_over_the_link(num_gpus, sent):
    assert reduced_ps(num_gpus, 1000) == sent * 500  # 500 ps a byte


def test_measured_times_count_where_there_are_some():
    assert reduced_ps(2, 1000, all_reduce=MEASURED) == 8_000_000
    assert reduced_ps(2, 2000, all_reduce=MEASURED) == 9_000_000
    assert reduced_ps(1, 1000, all_reduce=MEASURED) == 0


def test_measured_on_fewer_gpus_they_grow_by_the_ring_s_share():
    assert reduced_ps(4, 1000, all_reduce=MEASURED) == 12_000_000  # 3/4 to 1/2
    assert reduced_ps(8, 1000, all_reduce=MEASURED) == 14_000_000  # 7/8 to 1/2


def test_the_data_sheet_model_pays_two_a_layer_and_their_latency():
    model = ModelSpec("tiny", 3, 100, 4, 4, 25, 256, 2, 100, 512)
    cost = AnalyticCost(model, ServerSpec("server", GPU, 4), Efficiencies(all_reduce_s=1e-6))
    # 5 tokens of 100 channels of 2 bytes: 1.5 times 1000 bytes at 500 ps each, and a microsecond
    assert cost.iteration(Work(5, 5)) == pytest.approx(2 * 3 * (1_000_000 + 1500 * 500), abs=2)
