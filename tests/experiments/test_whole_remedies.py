"""Remedies that need no second one."""

import json

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


LONG = "vllm serve mistralai/Mistral-7B-Instruct-v0.2 --max-model-len"


def drafting(drafter):
    values = {"method": "draft_model", "model": drafter, "num_speculative_tokens": 3}
    return f"--speculative-config '{json.dumps(values)}'"


@pytest.mark.parametrize(
    ("release", "drafter", "asked_len"),
    [
        ("0.33", "meta-llama/Llama-2-7b-hf", 16384),
        ("0.33", "mistralai/Mistral-7B-Instruct-v0.2", 4096),
        ("0.19", "meta-llama/Llama-2-7b-hf", 4096),
    ],
)
def test_requests_beyond_a_drafter_s_positions_need_another_drafter(
    testbed, release, drafter, asked_len
):
    words = ("gpu=h100-80gb", f"release={release}", "trace=guidellm", "arrivals.duration_s=5")
    words = (*words, "trace.prompt_tokens=6000", "trace.output_tokens=20", "--seeds", "1")
    command, is_capped = f"{LONG} {asked_len} {drafting(drafter)}", asked_len > 6000
    mended = testbed("mend", command, *words, "arrivals.rate=1")[2]
    searched = testbed("capacity", "--from-vllm", command, *words, "slo.ttft_s=5")[2]
    for text in (mended, searched):
        line = text.splitlines()[-1]
        assert ("raise --max-model-len" in line) != is_capped, line
        assert ("leave the drafts out" in line) == is_capped, line
    without = testbed("mend", f"{LONG} 16384", *words, "arrivals.rate=1")
    assert without[0] == 0, without[2]
