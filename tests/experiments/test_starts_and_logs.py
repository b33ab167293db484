"""Lines that a server of vLLM logs at its start: models with states and windows, by release."""

import pytest

import testbed as library
from testbed.core.errors import DoesNotStart, InputError
from testbed.experiments.vllm_server.answer import fit_of
from testbed.vllm.releases import RELEASES
from testbed.vllm.server import OTHER_KV_TYPES

QWEN35, NEXT = "Qwen/Qwen3.5-27B", "Qwen/Qwen3-Next-80B-A3B-Instruct"
NEMOTRON, GEMMA = "nvidia/Nemotron-H-8B-Base-8K", "google/gemma-3-27b-it"


def fit(command, gpu, release):
    return fit_of(f"vllm serve {command}", gpu, release=RELEASES[release])


STATES = [
    (f"{QWEN35}-FP8 --gpu-memory-utilization 0.95", "h100-80gb", 847),
    (QWEN35, "h100-nvl", 621),
    (f"{NEMOTRON} --max-num-seqs 600", "l4", 246),
    ("Qwen/Qwen3.5-9B --max-num-seqs 5000 --max-num-batched-tokens 8192", "h100-80gb", 2603),
    (f"{NEXT} -tp 4 --max-num-seqs 7000", "h100-80gb", 5740),
]


@pytest.mark.parametrize(("command", "gpu", "largest"), STATES)
def test_graphs_of_a_model_with_states_need_a_block_a_sequence(command, gpu, largest):
    with pytest.raises(DoesNotStart, match=rf"--max-num-seqs {largest} starts"):
        fit(command, gpu, "0.33")
    words = command.partition(" --max-num-seqs")[0]
    assert fit(f"{words} --max-num-seqs {largest}", gpu, "0.33").num_blocks >= largest
    with pytest.raises(DoesNotStart):
        fit(f"{words} --max-num-seqs {largest + 1}", gpu, "0.33")


def test_the_longest_sequence_of_layers_with_longer_blocks_is_all_that_fits():
    # Gemma-4's layers of full attention cache fewer bytes a token, and have longer blocks.
    command = "google/gemma-4-26B-A4B --kv-cache-memory-bytes 6442450944 --max-num-seqs 64"
    found = fit(f"{command} --max-model-len auto", "h100-80gb", "0.33")
    assert found.max_concurrency == pytest.approx(1, abs=0.005)
    assert found.kv_tokens == 140302  # vLLM's own planner, on these bytes


def test_without_graphs_or_in_0_19_any_number_of_sequences_starts():
    assert fit(f"{QWEN35} --enforce-eager", "h100-nvl", "0.33").num_blocks == 605
    assert fit(f"{QWEN35}-FP8 --gpu-memory-utilization 0.95", "h100-80gb", "0.19").num_blocks == 897
    assert fit(f"{QWEN35} --max-num-seqs 256", "h100-80gb", "0.33").num_blocks > 256


GROUPED = [
    ("openai/gpt-oss-120b --max-model-len 131072", "b200", 2177670, 16.61),
    (f"{NEXT} -tp 4 --max-model-len 8192", "h100-80gb", 1942908, 237.17),
    (f"{NEMOTRON} --max-model-len 8192", "h100-80gb", 1093632, 133.5),
    ("openai/gpt-oss-20b --max-model-len 16384", "h100-80gb", 1219116, 74.41),
    ("Qwen/Qwen3.5-9B --max-model-len 16384 --max-num-seqs 256", "a100-80gb", 1431875, 87.39),
    (f"{GEMMA} --max-model-len 8192 --gpu-memory-utilization 0.95", "h100-80gb", 35602, 4.35),
]


@pytest.mark.parametrize(("command", "gpu", "tokens", "concurrency"), GROUPED)
def test_newer_releases_log_the_concurrency_times_the_longest_sequence(
    command, gpu, tokens, concurrency
):
    found = fit(command, gpu, "0.33")
    assert (found.kv_tokens, round(found.max_concurrency, 2)) == (tokens, concurrency)


@pytest.mark.parametrize("release", ["0.20", "0.28", "0.33"])
def test_the_logged_tokens_of_windows_are_those_of_whole_sequences(release):
    found = fit(f"{GEMMA} --max-model-len 8192", "h100-80gb", release)
    assert found.kv_tokens == int(found.max_concurrency * 8192)
    blocks_of_a_group = found.num_blocks // 7 * found.block_size
    assert found.kv_tokens != blocks_of_a_group


@pytest.mark.parametrize("name", OTHER_KV_TYPES)
def test_a_type_of_cached_values_is_known_though_it_is_not_modelled(name):
    with pytest.raises(InputError, match="is not modelled"):
        fit(f"Qwen/Qwen3-8B --kv-cache-dtype {name}", "h100-80gb", "0.33")


@pytest.mark.parametrize(
    ("command", "release"),
    [
        (f"{QWEN35} --max-model-len 32768 --enable-prefix-caching --max-num-seqs 64", "0.19"),
        (f"{QWEN35} --max-model-len 32768 --max-num-seqs 64", "0.33"),
        (f"{NEXT} -tp 4 --max-model-len 8192 --max-num-seqs 64", "0.33"),
        (f"{NEXT} -tp 4 --max-model-len 8192 --enable-prefix-caching", "0.19"),
        (f"{NEMOTRON} --max-model-len 8192", "0.33"),
        ("openai/gpt-oss-20b --max-model-len 16384", "0.33"),
        (f"{GEMMA} --max-model-len 8192", "0.33"),
    ],
)
def test_a_run_and_its_note_have_the_lines_of_fits(command, release):
    found = fit(command, "h100-80gb", release)
    words = {"from_vllm": f"vllm serve {command}", "release": release}
    run = library.simulate("gpu=h100-80gb", duration_s=1, rate=1, **words).summary["run"]
    assert run["kv_cache_tokens"] == found.kv_tokens
    assert run["max_concurrency"] == pytest.approx(found.max_concurrency, abs=0.01)
