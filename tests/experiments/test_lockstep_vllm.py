"""`testbed lockstep vllm`: its output if vLLM and ours differ.

Tests that need vLLM are skipped if it is not installed.
"""

from dataclasses import asdict, replace

import pytest
from refusals import check_refusal, check_words

from testbed.core.request import Request
from testbed.experiments.real.lockstep.sides import served, sides_of
from testbed.experiments.real.lockstep.vllm_installation import options_of
from testbed.experiments.vllm_server.translation import expand

WORDS = ("+system=vllm-v1", "policy.watermark=0", "~server.kv_memory_gib", "server.num_blocks=40")


def setup_of(*words, requests=()):
    return sides_of((*WORDS, *words), list(requests))[1]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param(
            (),
            {"block_size": 16, "max_model_len": 2048, "asynchronous": True, "caches": True},
            id="the defaults of the release",
        ),
        pytest.param(
            ("scheduler=vllm_v1", "policy=paged", "policy.block_size=8", "model.max_len=99"),
            {"block_size": 8, "max_model_len": 99, "asynchronous": False, "caches": False},
            id="without caching",
        ),
        pytest.param(
            (
                "scheduler.ignore_eos=false",
                "scheduler.enable_chunked_prefill=false",
                "scheduler.max_num_batched_tokens=999",
            ),
            {
                "ignore_eos": False,
                "enable_chunked_prefill": False,
                "max_num_batched_tokens": 999,
            },
            id="limits of the scheduler",
        ),
    ],
)
def test_vllms_server_has_the_options_of_the_configuration(words, expected):
    options = asdict(options_of(setup_of(*words)))
    assert options["num_blocks"] == 40
    assert {name: options[name] for name in expected} == expected


def test_requests_longer_than_the_model_are_left_out():
    words = ("policy.block_size=4", "model.max_len=60")
    fits, too_long, short = (
        Request(0, 0, 50, 10),
        Request(1, 0, 51, 10),
        Request(2, 5, 3, 3),
    )
    taken, left_out = served(setup_of(*words, requests=[fits, too_long, short]))
    assert ([request.request_id for request in taken], left_out) == ([0, 2], 1)
    check_refusal(("no request that fits the pool",), served, setup_of(*words, requests=[too_long]))


@pytest.fixture
def lockstep(testbed):
    """`testbed lockstep vllm ...`, if vLLM is installed."""
    pytest.importorskip("vllm")
    return lambda *words: testbed("lockstep", "vllm", *words)


FEW = (
    "policy.block_size=4",
    "trace=csv",
    "trace.path=few.csv",
    "arrivals=replay",
    "cost=analytic",
)


def test_random_configurations_are_equal_to_the_end(lockstep):
    code, output, _ = lockstep("--random", "3", "--requests", "30")
    assert code == 0
    for line in output.splitlines():
        equal, _, iterations = line.partition(": ")[2].partition(" iterations")[0].split()
        assert equal == iterations


def check_equal_under_pressure(lockstep, command, *load):
    """Every iteration of a server's command is equal, and some requests were preempted."""
    words = ("gpu=h100-80gb", "cost=analytic", *load)
    code, output, errors = lockstep("--from-vllm", command, *words)
    assert code == 0, errors
    equal, _, iterations = output.partition(" iterations")[0].split()
    assert equal == iterations
    assert "preemptions 0" not in output


@pytest.mark.parametrize("switch", ["--no-enable-prefix-caching", "--enable-prefix-caching"])
def test_gemmas_groups_decide_as_vllms_until_the_end(lockstep, switch):
    """Windows and full attention in pages of one size, with preemptions."""
    command = (
        "vllm serve google/gemma-3-27b-it --max-model-len 2048 --num-gpu-blocks-override 1500 "
        f"{switch}"
    )
    check_equal_under_pressure(lockstep, command, "arrivals.duration_s=4", "arrivals.rate=10")


def test_states_without_a_prefix_cache_decide_as_vllms_until_the_end(lockstep):
    """Qwen3-Next: a sequence has one page of each of three groups of states, however long it is."""
    command = (
        "vllm serve Qwen/Qwen3-Next-80B-A3B-Instruct -tp 4 --max-model-len 8192 "
        "--num-gpu-blocks-override 60 --no-enable-prefix-caching --max-num-seqs 60"
    )
    check_equal_under_pressure(lockstep, command, "arrivals.duration_s=2", "arrivals.rate=30")


@pytest.mark.parametrize("words", [("--states",), ("--windows",), ("--states", "--seed", "6")])
def test_prefixes_of_states_and_windows_are_found_as_by_vllm(lockstep, words):
    code, output, _ = lockstep("--random", "2", "--requests", "20", *words)
    assert code == 0
    assert output.count("iterations are equal") == 2


@pytest.mark.parametrize(("gpu", "alignment"), [("h100-80gb", 64), ("a100-80gb", None)])
def test_states_are_cached_as_the_kernels_of_the_gpu_allow(gpu, alignment):
    command = "vllm serve Qwen/Qwen3.5-27B --max-num-seqs 64"
    words = expand(command, [f"gpu={gpu}", "release='0.33'", "arrivals.duration_s=1"])
    options = options_of(sides_of(words, None)[1])
    assert options.mamba_cache_mode == "align"
    assert options.prefill_checkpoint_alignment == alignment


def test_first_difference_and_the_shortest_workload_are_shown(lockstep, tmp_path, monkeypatch):
    """vLLM may run two requests at once, and ours any number."""
    (tmp_path / "few.csv").write_text(
        "input_tokens,output_tokens,arrival_s\n3,4,0.001\n11,2,0.001\n40,40,0.002\n"
        "5,3,0.012\n9,6,0.013\n"
    )
    monkeypatch.setattr(
        "testbed.experiments.real.lockstep.sides.options_of",
        lambda setup: replace(options_of(setup), max_num_seqs=2),
    )
    words = [word for word in WORDS if "num_blocks" not in word]
    code, output, _ = lockstep(*words, *FEW, "server.num_blocks=10", "scheduler=vllm_v1")
    assert code == 1
    check_words(
        (
            "5 of 10 iterations are equal",
            "first difference: iteration 3",
            "1 requests never fit the pool",
            "shortest workload that was found",
        ),
        output,
    )
    assert output.count(": 1 tokens in, 1 out") == 3
