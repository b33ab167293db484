"""Servers that are compared have costs of one source: points of a sweep, searched commands."""

import json

import pytest
from test_json_answers import check

import testbed as testbed_api
from testbed.experiments.cli.capacity_lines import compared_lines
from testbed.experiments.cli.json_answers import (
    CapacityAnswer,
    ComparedCapacities,
    SeedCapacity,
    compared_capacities,
)
from testbed.experiments.plan.cost_errors import NOT_COMPARABLE
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.one_source import OF_ONE_SOURCE, sources_differ
from testbed.experiments.runs.sweep_words import sweep_points
from testbed.experiments.vllm_server.translation import expand
from testbed.run.machine import cost_of
from testbed.run.summaries import costs_of

LLAMA = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192"
FP8 = f"{LLAMA} --kv-cache-dtype fp8"
LOAD = ("gpu=h100-80gb", "trace=random", "arrivals.duration_s=2")


def words(command, *more):
    return expand(command, [*LOAD, *more])


@pytest.mark.parametrize(
    ("other", "differ"),
    [
        (words(FP8), True),
        (words(LLAMA, "server.num_gpus=2"), True),
        (words(LLAMA, "policy.block_size=64"), True),
        (words(LLAMA, "arrivals.rate=3", "seed=2"), False),
        (words(LLAMA, "scheduler.max_num_seqs=8"), False),
        (words(FP8, OF_ONE_SOURCE), False),  # a choice
    ],
)
def test_measured_and_derived_costs_are_of_two_sources(other, differ, capsys):
    assert sources_differ([words(LLAMA), other]) == differ
    assert not sources_differ([other, other])


def test_measured_iterations_are_of_blocks_of_16_tokens():
    """A server with other blocks has the measured times of kernels on such blocks."""
    of_16, of_64 = (
        cost_of(configured(words(f"{LLAMA} --block-size {size}"))).fingerprint for size in (16, 64)
    )
    assert "system" in of_16
    assert "system" not in of_64


def test_a_sweep_over_two_servers_says_that_all_costs_are_derived(testbed):
    servers = ("--from-vllm", LLAMA, "--from-vllm", FP8)
    code, printed, error = testbed("run", "-m", *servers, *LOAD, "--json")
    answer = json.loads(printed)
    assert code == 0
    assert OF_ONE_SOURCE in error
    assert any(OF_ONE_SOURCE in note for note in answer["notes"])
    assert all("derived" in costs_of(point["summary"]) for point in answer["points"])
    chosen = testbed("run", "-m", *servers, *LOAD, "cost.iterations=vllm-0.20")
    assert "the costs are of different origins" in chosen[1]


def test_a_sweep_in_python_has_costs_of_one_source_too(capsys):
    servers = {"from_vllm": [LLAMA, FP8], "gpu": "h100-80gb", "trace": "random"}
    options = {"duration_s": 1, "jobs": 1, "rate": [1, 2], **servers}
    derived = testbed_api.sweep(**options)["cost"]
    assert OF_ONE_SOURCE in capsys.readouterr().err
    assert derived.str.contains("derived").all()
    chosen = testbed_api.sweep("cost.iterations=vllm-0.20", **options)["cost"]
    assert chosen.str.contains("derived").tolist() == [False, True, False, True]
    one = testbed_api.sweep(**{**options, "from_vllm": LLAMA})["cost"]
    assert not one.str.contains("derived").any()


def test_capacities_of_two_servers_are_compared_on_the_same_seeds(testbed):
    words = ("capacity", "--from-vllm", LLAMA, "--from-vllm", FP8, *LOAD, "slo.ttft_s=0.2")
    words = (*words, "--seeds", "2", "--precision", "0.5", "--low", "20", "--high", "60")
    code, printed, _ = testbed(*words, "--json")
    answer = json.loads(printed)
    assert code == 0
    check(answer, ComparedCapacities, "compared")
    first, second = answer["servers"]
    origins = [server["capacity"]["origin"] for server in answer["servers"]]
    assert ["other cache" in origin for origin in origins] == [False, True]
    assert all("software time of vllm-0.19" in origin for origin in origins)
    assert any(all(origin in note for origin in origins) for note in answer["notes"])
    assert (first["command"], second["command"]) == ("plain", "--kv-cache-dtype fp8")
    assert (first["difference"], first["difference_half_width"]) == (0, 0)
    means = [server["capacity"]["rate"] for server in answer["servers"]]
    assert second["difference"] == pytest.approx(means[1] - means[0])
    steps = max(server["capacity"]["step"] for server in answer["servers"])
    assert second["difference_half_width"] >= steps
    table = testbed(*words)[1]
    start = "--kv-cache-dtype fp8 less plain, on the same seeds: "
    assert start in table
    is_hidden = max(means) / min(means) - 1 < second["cost_error"]
    assert (second["is_comparable"], NOT_COMPARABLE in table) == (not is_hidden, is_hidden)


@pytest.mark.parametrize(("error", "is_comparable"), [(0.0, True), (0.2, True), (0.3, False)])
def test_a_difference_that_errors_of_both_costs_may_turn_is_not_compared(error, is_comparable):
    """A quarter more requests/s, whichever of the servers is the first."""
    for rates in ((4.0, 5.0), (5.0, 4.0)):
        answers = {f"{rate}": of_rate(rate) for rate in rates}
        errors = dict.fromkeys(answers, error)
        first, second = compared_capacities(answers, errors, []).servers
        assert second.is_comparable == is_comparable
        lines = compared_lines([first, second])
        assert any(NOT_COMPARABLE in line for line in lines) != is_comparable


def of_rate(rate):
    """The answer of a search with one seed."""
    seed = SeedCapacity(0, rate, 0.9, rate, rate, rate, [], "")
    return CapacityAnswer(rate, None, 0.1, 0.0, 0.9, 0.0, "", "", "", "", "", [seed], [])


def test_a_sweep_with_and_without_prefill_apart_is_paired():
    """A hand-over is of the points that have engines for prompts alone."""
    words = ("replicas=2", "prefill_replicas=null,1", "handover=by_layer")
    assert sweep_points(words) == [
        ("replicas=2", "prefill_replicas=null"),
        ("replicas=2", "prefill_replicas=1", "handover=by_layer"),
    ]
    both = sweep_points(("prefill_replicas=null,1", "handover=whole,by_layer"))
    assert len(both) == 3
    assert sweep_points(("handover=whole",)) == [("handover=whole",)]
