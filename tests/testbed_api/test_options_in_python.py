"""Options of `testbed.simulate`: names, classes, pairs, objects, specs, numbers of
NumPy.
"""

from functools import partial

import numpy as np
import pandas as pd
import pytest
from refusals import check_refusal
from tiny_run import tiny_result

import testbed as front
from testbed.core.shapes import read_model
from testbed.engine.arrivals import Poisson
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec
from testbed.sched.preemption import Swap

SHORT = {"duration_s": 1}


def described(*words, **options):
    """The summary of a run."""
    return front.simulate(*words, **{**SHORT, **options}).summary["run"]


@pytest.mark.parametrize(
    ("words", "policy", "expected"),
    [
        pytest.param((), "paged", "Paged(block_size=16, watermark=0.01)", id="a name"),
        pytest.param((), Paged, "Paged(block_size=16)", id="a class"),
        pytest.param(("policy=contiguous_max",), Paged, "Paged(block_size=16)", id="more"),
        pytest.param((), (Paged, {"block_size": 8}), "Paged(block_size=8)", id="a pair"),
        pytest.param((), partial(Paged, block_size=32), "Paged(block_size=32)", id="a partial"),
        pytest.param((), {"block_size": 8}, "Paged(block_size=8, watermark=0.01)", id="values"),
    ],
)
def test_policy_is_a_name_a_class_a_pair_or_values(words, policy, expected):
    assert described(*words, policy=policy)["policy"] == expected


def test_policy_object_brings_its_pool():
    run = described(policy=Paged(PoolSpec(4000, 2048), block_size=4))
    assert (run["pool_slots"], run["block_size"]) == (4000, 4)


def test_arrivals_and_preemption_can_be_objects():
    run = described(arrivals=Poisson(2, 5), preemption=Swap(), duration_s=None)
    assert "Poisson" in run["arrivals"]
    assert "Swap" in run["preemption"]


def test_a_model_and_a_gpu_are_chosen_by_name_or_spec():
    by_name = described(model="llama-3-8b", gpu="h200")
    by_spec = described(model=read_model("llama-3-8b"), gpu="h200")
    assert (by_name["model"], by_name["gpu"]) == ("llama-3-8b", "h200")
    assert by_spec["pool_slots"] == by_name["pool_slots"]


def test_numbers_of_numpy_are_numbers():
    run = described(rate=np.float64(2), seed=np.int64(3))
    assert (run["seed"], type(run["seed"])) == (3, int)
    assert "rate=2" in run["arrivals"]


def test_keyword_argument_overrides_a_word():
    assert described("seed=1", seed=2)["seed"] == 2


def test_pools_of_models_are_given_or_computed():
    given = described(**{"server.kv_memory_gib": {"opt-13b": 5}})
    computed = described(**{"server.kv_memory_gib": {}})
    assert given["pool_gib"] == pytest.approx(5, abs=0.02)
    assert computed["pool_slots"] > described()["pool_slots"]


@pytest.mark.parametrize(
    ("options", "meant"),
    [
        ({"ratee": 1}, "rate"),
        ({"num_seq": 2}, "num_seqs"),
        ({"polcy": "paged"}, "policy"),
        ({"arrivals.rat": 1}, "arrivals.rate"),
        ({"policy.slab_size": 4}, "policy.block_size"),
        ({"slo": {"ttft": 1}}, "slo.ttft_s"),
    ],
    ids=str,
)
def test_mistyped_options_are_refused_with_the_nearest_one(options, meant):
    check_refusal((f"did you mean {meant}?",), front.simulate, **SHORT, **options)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return tiny_result(tmp_path_factory.mktemp("tiny"), slo={"ttft_s": 0.1})


def test_a_result_has_a_table_of_requests_and_one_of_iterations(result):
    assert len(result.requests) == result.summary["requests"]["finished"] == 7
    assert result.iterations["iterations"].sum() == result.summary["iterations"]
    inside = (result.requests["ttft_s"] <= 0.1).mean()
    assert result.summary["slo"]["share_inside"] == pytest.approx(inside)
    assert "7 arrived, 7 finished" in repr(result)


def test_results_are_compared_in_a_table(result, tmp_path_factory):
    other = tiny_result(tmp_path_factory.mktemp("max"), policy="contiguous_max")
    table = result.compare(other, names=("paged", "max")).table
    rows = table.set_index(["group", "quantity", "run"])["value"]
    for name, compared in (("paged", result), ("max", other)):
        mean = compared.summary["ttft_s"]["mean"]
        assert rows["TTFT", "mean", name] == pytest.approx(mean)
        assert rows["requests", "iterations", name] == compared.summary["iterations"]


@pytest.mark.parametrize("names", [("paged", "paged"), ("paged",), ("one", "two", "three")])
def test_two_results_have_two_names(result, names):
    check_refusal(("names", "two different names"), result.compare, result, names=names)


def test_a_timeline_has_only_the_window_of_time(result, tmp_path):
    path = result.timeline(tmp_path / "trace.json", 0.1, 0.15)
    events = pd.read_json(path, typ="series")["traceEvents"]
    times = [event["ts"] for event in events if event["ph"] == "X"]
    assert times
    assert min(times) < 0.15e6
    assert max(times) <= 0.15e6


def test_a_sweep_has_a_row_for_each_combination():
    table = front.sweep(
        policy=["paged", "contiguous_max"], seed=range(2), rate=2, duration_s=5, jobs=1
    )
    assert list(zip(table["policy"], table["seed"], strict=True)) == [
        ("paged", 0),
        ("paged", 1),
        ("contiguous_max", 0),
        ("contiguous_max", 1),
    ]
    assert (table["requests_arrived"] == table["requests_finished"]).all()


def test_capacity_is_the_highest_rate_that_keeps_the_objective():
    highest = front.capacity(policy="contiguous_max", ttft_s=0.5, duration_s=60, precision=0.5)
    inside = {rate: share for rate, share, _ in highest.points}
    assert inside[highest.rate] >= highest.share == 0.9
    assert all(share < 0.9 for rate, share in inside.items() if rate > highest.rate)
    higher = min(rate for rate in inside if rate > highest.rate)
    assert higher <= highest.rate * 1.5


def test_capacities_are_those_of_each_seed_with_their_interval():
    words = {"policy": "contiguous_max", "ttft_s": 0.5, "duration_s": 60, "precision": 0.5}
    capacities = front.capacities(seeds=[0, 1], **words)
    assert capacities.of_seed[0] == front.capacity(seed=0, **words)
    rates = [capacity.rate for capacity in capacities.of_seed.values()]
    assert capacities.rate.mean == sum(rates) / 2
    assert "error when tested" in capacities.of_seed[0].costs
