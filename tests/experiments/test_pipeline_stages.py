"""Pipeline stages and context parallelism of a vLLM command: the pool, the log and the memory.

Numbers of the families are those of vLLM's own model classes, KV specs and planner on a CPU.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from refusals import refuses, says_no_start

from testbed.core.errors import DoesNotStart, InputError
from testbed.core.layer_order import letters_of, period_of
from testbed.core.shapes import read_model
from testbed.experiments.real.lockstep.model_configs import FAMILIES
from testbed.experiments.vllm_server.answer import fit_of, lines_of
from testbed.experiments.vllm_server.named import gpu_named
from testbed.experiments.vllm_server.named_server import server_of
from testbed.experiments.vllm_server.translation import expand
from testbed.vllm.command import read_command
from testbed.vllm.option_reader import OptionReader
from testbed.vllm.releases import release_numbered
from testbed.vllm.start_refusals import check_context_shards

CONFIGS = json.loads(FAMILIES.read_text(encoding="utf-8"))
POOL = f"--kv-cache-memory-bytes {4 << 30}"
DRAFTER = {"model": "meta-llama/Llama-3.2-1B", "num_speculative_tokens": 2}
NGRAM = """--speculative-config '{"method":"ngram","num_speculative_tokens":3}'"""
ONE_GROUP = "--disable-hybrid-kv-cache-manager"
LLAMA = "vllm serve meta-llama/Llama-3.1-70B"
QWEN3_MOE = "vllm serve Qwen/Qwen3-30B-A3B --max-model-len 8192"


def fits(words, release="0.33"):
    return fit_of(words, "h100-80gb", release_numbered(release))


def of_family(folder: Path, family: str, words: str, release="0.33"):
    (folder / "config.json").write_text(json.dumps(CONFIGS[family]), encoding="utf-8")
    return fits(f"vllm serve {folder} {POOL} {words}", release)


@pytest.mark.parametrize(
    ("family", "words", "release", "num_blocks", "tokens", "concurrency"),
    [
        ("llama", "-pp 2", "0.33", 131072, 2097152, 256.0),
        ("llama", "-pp 3", "0.19", 174762, 2796192, 341.33),
        ("llama", "-pp 7", "0.33", 262144, 4194304, 512.0),
        ("gemma3", "-pp 2", "0.33", 131072, 261696, 31.95),  # a column's layers lie in one stage
        ("gemma3", "-pp 2 --max-model-len 5000", "0.33", 131072, 260995, 52.2),
        ("gemma3", "-pp 3", "0.19", 131072, 262144, 31.95),
        ("gemma4", "-pp 7", "0.33", 65536, 418449, 51.08),
        ("gpt-oss", "-pp 2", "0.33", 262144, 2095105, 255.75),
        ("gpt-oss", "-pp 2", "0.28", 262144, 3724632, 28.42),  # of experts no batch more
        ("gemma3", "-pp 2", "0.28", 131072, 261696, 31.95),
        ("llama4", "-pp 3", "0.33", 524288, 2097152, 256.0),
        ("deepseek-v3.2", "-pp 3", "0.33", 17421, 1114944, 136.1),
        ("nemotron-h", "-pp 2", "0.33", 7943, 2957684, 361.05),
        ("qwen3-next", "-pp 2", "0.33", 10922, 1720635, 210.04),
    ],
)
def test_all_stages_have_the_blocks_of_the_smallest_pool(
    tmp_path, family, words, release, num_blocks, tokens, concurrency
):
    found = of_family(tmp_path, family, words, release)
    assert (found.num_blocks, found.kv_tokens) == (num_blocks, tokens)
    assert round(found.max_concurrency, 2) == concurrency


@pytest.mark.parametrize(
    ("family", "words", "release", "gib"),
    [
        ("llama", "-pp 3", "0.33", (0.104, 0.042, 0.089)),
        ("mixtral", "-pp 3", "0.33", (0.411, 0.411, 0.314)),  # the vocabulary on each stage
        ("gemma", "-pp 3", "0.33", (0.126, 0.126, 0.104)),  # tied
        ("qwen3.5", "-pp 2", "0.33", (0.148, 0.206)),  # the embedding on each stage
        ("phi", "-pp 3", "0.33", (0.131, 0.07, 0.108)),
        ("deepseek-v3", "-pp 2", "0.19", (0.147, 0.149)),  # its first layer has no experts
    ],
)
def test_a_stage_has_the_weights_of_its_layers(tmp_path, family, words, release, gib):
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[family]), encoding="utf-8")
    command = read_command(f"vllm serve {tmp_path} {POOL} {words}")
    server = server_of(command, "h100-80gb", release=release_numbered(release), for_memory=True)
    weights = [stage.weight_bytes / (1 << 30) for stage in server.stages]
    assert weights == pytest.approx(gib, rel=0.02)


def test_images_are_encoded_by_the_first_stage():
    command = read_command(
        f"vllm serve Qwen/Qwen3-VL-32B-Instruct {POOL} -pp 2 --max-model-len 8192"
    )
    server = server_of(command, "h200", release=release_numbered("0.33"), for_memory=True)
    first, last = (stage.model.vision_params for stage in server.stages)
    assert first == read_model("qwen3-vl-32b").vision_params
    assert last is None


def test_the_memory_is_that_of_the_stage_with_the_smallest_pool():
    found = fits(f"{LLAMA} -tp 2 -pp 2")
    assert (found.num_gpus, found.num_stages, found.stage_layers) == (4, 2, "40-79")
    # Half of the weights of four GPUs in tensor parallelism, and all of the sampler's logits.
    assert found.weights_gib == pytest.approx(fits(f"{LLAMA} -tp 4").weights_gib, rel=0.03)
    text = "\n".join(lines_of(found))
    assert "layers 40-79" in text
    assert "on 4 x h100-80gb" in text
    assert fits(f"{LLAMA} -tp 4").stage_layers is None


def test_the_environment_divides_the_layers():
    uneven = fits(f"VLLM_PP_LAYER_PARTITION=44,36 {LLAMA} -tp 2 -pp 2")
    even = fits(f"{LLAMA} -tp 2 -pp 2")
    assert uneven.stage_layers == "0-43"
    assert uneven.kv_tokens < even.kv_tokens


@pytest.mark.parametrize(
    ("partition", "error"),
    [("40,41", DoesNotStart), ("80", DoesNotStart), ("forty,40", InputError), ("", InputError)],
)
def test_a_partition_of_other_layers_does_not_start_and_one_without_numbers_is_wrong_alone(
    partition, error
):
    given = f"VLLM_PP_LAYER_PARTITION={partition}"
    line = refuses(given, fits, f"{given} {LLAMA} -tp 2 -pp 2", error=error)
    assert says_no_start(line) == (error is DoesNotStart)


def test_a_stage_without_attention_is_not_modelled(tmp_path):
    with pytest.raises(InputError, match="not modelled"):
        of_family(tmp_path, "qwen3-next", "-pp 7")
    with pytest.raises(InputError, match="order"):
        fits("vllm serve meta-llama/Llama-3.2-11B-Vision -pp 2 --max-model-len 8192")


@pytest.mark.parametrize(
    ("family", "words", "release", "tokens", "concurrency"),
    [
        ("deepseek-v3", "-tp 2 -dcp 2", "0.33", 932064, 113.78),
        ("deepseek-v3", "-tp 8 -dcp 8", "0.33", 3728256, 455.11),
        ("deepseek-v3.2", "-tp 2 -dcp 2 --kv-cache-dtype fp8", "0.33", 1362560, 166.33),
        ("qwen3-moe", "-tp 8 -dcp 4", "0.33", 8388608, 1024.0),
        ("qwen3-next", "-tp 8 -dcp 2", "0.33", 3677198, 448.88),  # states are on each GPU
        ("llama4", "-tp 4 -dcp 2", "0.33", 2396745, 292.57),  # and so are chunks
        ("llama", "-tp 4 -dcp 2", "0.33", 4194304, 512.0),
        ("qwen3-next", f"-tp 8 -dcp 2 {NGRAM}", "0.33", 3273603, 399.61),
        ("llama4", f"-tp 4 -dcp 2 {NGRAM}", "0.33", 2396745, 292.57),
        ("gemma2", f"-tp 8 -dcp 2 {ONE_GROUP}", "0.33", 1048576, 128.0),  # which stores all tokens
    ],
)
def test_context_parallelism_divides_the_tokens_of_full_attention(
    tmp_path, family, words, release, tokens, concurrency
):
    found = of_family(tmp_path, family, words, release)
    assert (found.kv_tokens, round(found.max_concurrency, 2)) == (tokens, concurrency)


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("llama", "-tp 2 -dcp 2"),  # no head has a copy
        ("llama", "-tp 8 -dcp 8"),
        ("llama", "-tp 8 -dcp 3"),
        ("gemma2", "-tp 8 -dcp 2"),  # windows
        ("qwen2-windows", f"-tp 8 -dcp 2 {ONE_GROUP}"),  # of all layers, which are one group anyway
        ("deepseek-v3.2", "-tp 2 -dcp 2"),  # sparse attention, in 16 bits
    ],
)
def test_context_parallelism_that_vllm_refuses(tmp_path, family, words):
    with pytest.raises(DoesNotStart, match="--decode-context-parallel-size"):
        of_family(tmp_path, family, words)


@pytest.mark.parametrize(
    ("gpu", "words", "problem"),
    [
        ("h100-80gb", "-tp 8 -dcp 4 --kv-cache-dtype fp8", ""),
        ("h100-80gb", "-tp 8 -dcp 8 --kv-cache-dtype fp8", "16 and 128"),
        ("h100-80gb", "-tp 4 -dcp 2 --kv-cache-dtype fp8", "32 and 64"),
        ("b200", "-tp 8 -dcp 8", ""),
        ("rtx-pro-6000", "-tp 8 -dcp 2", "not modelled"),
    ],
)
def test_hopper_s_sparse_attention_divides_tokens_of_few_heads(gpu, words, problem):
    """As vLLM 0.33's FlashMLASparseMetadataBuilder reads; FlashInfer's kernel takes any."""
    words = f"vllm serve deepseek-ai/DeepSeek-V3.2 --max-model-len 512 {words}"
    reader = OptionReader(read_command(words), release_numbered("0.33"), gpu_named(gpu))
    model = read_model("deepseek-v3.2")
    packed = replace(model, latent=replace(model.latent, packed_bytes=656 * ("fp8" in words)))
    asked = reader, packed, reader.whole("--tensor-parallel-size", 1)
    if problem:
        refuses(problem, check_context_shards, *asked)
    else:
        check_context_shards(*asked)


def test_engines_of_data_parallelism_divide_the_experts():
    one, two = fits(f"{QWEN3_MOE} -tp 2"), fits(f"{QWEN3_MOE} -tp 2 -dp 2")
    assert (two.num_replicas, two.num_gpus) == (2, 2)
    assert 0.5 < two.weights_gib / one.weights_gib < 0.56
    assert two.kv_tokens > one.kv_tokens


@pytest.mark.parametrize(
    "words",
    [f"{LLAMA} -tp 2 -pp 2", f"{LLAMA} -tp 16 -dcp 2", f"{QWEN3_MOE} -dp 2"],
)
def test_a_server_whose_iterations_are_not_simulated_is_refused_by_a_run(words):
    option = {"-pp": "pipeline", "-dcp": "context", "-dp": "data-parallel"}
    (named,) = [text for name, text in option.items() if f"{name} " in words]
    with pytest.raises(InputError, match=named):
        expand(words, ["gpu=h100-80gb"])


@pytest.mark.parametrize("name", ["gemma-3-27b", "nemotron-h-8b", "gpt-oss-20b", "llama-3.1-8b"])
def test_the_order_of_layers_has_as_many_of_each_kind(name):
    shape = read_model(name)
    letters = letters_of(shape)
    assert letters.count("w") == (shape.window.num_layers if shape.window else 0)
    assert letters.count("s") == (shape.states.num_layers if shape.states else 0)
    assert len(letters) == shape.num_layers + letters.count("-")


@pytest.mark.parametrize(
    ("letters", "period"), [("wwfwwf", "wwf"), ("wwfw", "wwf"), ("f", "f"), ("wf-", "wf-")]
)
def test_a_period_is_the_shortest(letters, period):
    assert period_of(letters) == period


@pytest.mark.parametrize(
    "more",
    [
        "--enable-lora --max-loras 1",
        "--kv-offloading-size 10",
        f"--speculative-config '{json.dumps(DRAFTER)}'",
    ],
)
def test_what_has_a_place_in_a_pipeline_is_not_modelled_beside_it(more):
    option = more.split()[0].replace("--kv-offloading-size", "--kv-transfer-config")
    with pytest.raises(InputError, match=f"not modelled beside {option}"):
        fits(f"{LLAMA} -tp 2 -pp 2 {more}")
