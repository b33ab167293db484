"""Remedies that need no second one."""

import pytest

from testbed.core.errors import InputError
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.own_options import readers_of
from testbed.experiments.runs.replicated import cells_of


def test_a_value_of_another_option_names_the_option():
    assert readers_of("trace", "turns") == ["guidellm"]
    with pytest.raises(InputError) as refusal:
        configured(["trace=random", "trace.turns=4"])
    assert refusal.value.key == "trace.turns"
    assert "trace=guidellm" in refusal.value.remedy
    assert readers_of("trace", "foo") == []


def test_the_remedy_for_turns_of_open_arrivals_runs(testbed):
    words = ("run", "trace=guidellm", "trace.turns=2", "trace.num_conversations=2")
    refusal = testbed.refused(*words, "arrivals.rate=2")
    assert "arrivals=sessions arrivals.at_once=N" in refusal
    assert testbed(*words, "arrivals=sessions", "arrivals.at_once=1")[0] == 0


def test_bytes_of_a_pool_name_their_unit(testbed):
    line = "vllm serve Qwen/Qwen3-8B --kv-cache-memory-bytes"
    assert "did you mean 20G?" in testbed("fits", f"{line} 20", "gpu=h100-80gb")[2]
    assert testbed("fits", f"{line} 20G", "gpu=h100-80gb")[0] == 0


def test_two_seeds_are_said_to_be_few():
    assert "too few" in cells_of("2")
    assert "too few" not in cells_of("3")


def test_an_objective_longer_than_the_run_is_said(testbed):
    words = ("run", "trace=random", "arrivals.duration_s=5")
    assert "did you mean 0.5?" in " ".join(testbed(*words, "slo.ttft_s=500")[1].split())
    assert "did you mean" not in testbed(*words, "slo.ttft_s=0.5")[1]
