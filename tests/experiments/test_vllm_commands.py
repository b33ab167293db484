"""Commands of vLLM's server as people publish them: what each becomes, or why it is refused.

The first cases are after public reports; the others ask the same kinds of question.
"""

import json

import pytest
from refusals import check_words

from testbed.core.errors import InputError
from testbed.experiments.runs.compose import configured
from testbed.experiments.vllm_server.answer import fit_of
from testbed.experiments.vllm_server.translation import expand
from testbed.vllm.command import read_command

LLAMA = "vllm serve meta-llama/Llama-3.1-8B-Instruct"
NEXT = "vllm serve Qwen/Qwen3-Next-80B-A3B-Instruct"


def overrides(command, gpu="h100-80gb"):
    """The words that a command becomes, which must be a valid configuration."""
    words = expand(command, [f"gpu={gpu}"])
    configured(words)
    return words


def test_an_option_of_several_values_takes_all_words_up_to_the_next_option(tmp_path):
    several = "--lora-modules a=/x b=/y --max-num-seqs 4 --served-model-name chat chat-v2"
    values = read_command(f"{LLAMA} {several}").values
    assert values["--lora-modules"] == "a=/x b=/y"
    assert values["--max-num-seqs"] == "4"
    (tmp_path / "server.yaml").write_text("served-model-name: [chat, chat-v2]\nmax-num-seqs: 4\n")
    from_file = read_command(f"{LLAMA} --config {tmp_path}/server.yaml").values
    assert from_file["--served-model-name"] == values["--served-model-name"] == "chat chat-v2"
    with pytest.raises(InputError) as refusal:
        read_command(f"{LLAMA} --max-num-seqs 4 8")
    assert refusal.value.key == "vllm serve: 8"


@pytest.mark.parametrize(
    ("command", "gpu", "expected"),
    [
        pytest.param(
            f"{LLAMA} --num-gpu-blocks-override 2000",
            "h100-80gb",
            ("server.num_blocks=2000",),
            id="blocks that are given",
        ),
        pytest.param(
            f"{LLAMA} --kv-cache-memory-bytes 8589934592 --max-model-len 65536",
            "h100-80gb",
            ("server.num_blocks=4096",),
            id="bytes that are given: 8 GiB are 4,096 blocks of 2 MiB",
        ),
        pytest.param(
            "vllm serve meta-llama/Llama-3.3-70B-Instruct -tp 4",
            "h100-80gb",
            ("model=llama-3.1-70b", "server.num_gpus=4"),
            id="a successor of the same shape",
        ),
        pytest.param(
            f"{LLAMA} --max-model-len auto", "l4", ("model.max_len=33136",), id="the longest"
        ),
        pytest.param(
            f"{NEXT} -tp 2 --enable-prefix-caching",
            "h200",
            ("policy=grouped_caching_v1", "policy.block_size=544"),
            id="a block as large as a state",
        ),
        pytest.param(
            f"{NEXT} -tp 2",
            "h200",
            ("policy=grouped", "policy.block_size=544"),
            id="no cache of states unless it is asked for",
        ),
        pytest.param(
            "vllm serve Qwen/Qwen3-30B-A3B-Instruct-2507 --max-model-len 32768",
            "h100-80gb",
            ("model=qwen3-30b-a3b",),
            id="a date behind the training",
        ),
        pytest.param(
            "CUDA_VISIBLE_DEVICES=0 vllm serve meta-llama/Llama-3.1-8B",
            "h100-80gb",
            ("model=llama-3.1-8b",),
            id="a variable before the command",
        ),
        pytest.param(
            f"{LLAMA} --kv-cache-memory-bytes 20G",
            "h100-80gb",
            ("server.num_blocks=10240",),
            id="bytes with a unit",
        ),
        pytest.param(
            "vllm serve google/gemma-3-27b-it --num-gpu-blocks-override 4000 --max-model-len 4096",
            "h100-80gb",
            ("policy=grouped_caching_v1", "null_blocks=0"),
            id="pages of a hybrid model",
        ),
        pytest.param(
            "vllm serve meta-llama/Meta-Llama-3-8B-Instruct",
            "l4",
            ("model=llama-3-8b", "scheduler.max_num_seqs=256"),
            id="the owner's name in the model's",
        ),
        pytest.param(
            "vllm serve RedHatAI/Qwen2.5-7B-Instruct-quantized.w8a8",
            "h100-80gb",
            ("model=qwen2.5-7b", "++model.weight_bits=8"),
            id="weights of 8 bits by their name",
        ),
        pytest.param(
            "vllm serve mistralai/Mistral-7B-Instruct-v0.2",
            "h100-80gb",
            ("model=mistral-7b",),
            id="a version behind the training",
        ),
        pytest.param(
            "vllm serve mistralai/Mistral-7B-Instruct-v0.1",
            "h100-80gb",
            ("model=mistral-7b-v0.1", "policy=grouped_caching_v1"),
            id="a version of another shape",
        ),
        pytest.param(
            "vllm serve nvidia/Nemotron-H-8B-Base-8K",
            "h100-80gb",
            ("model=nemotron-h-8b",),
            id="a length behind the training",
        ),
        pytest.param(
            "env HF_HOME=/data vllm serve meta-llama/Llama-3.1-8B -tp 2",
            "h100-80gb",
            ("server.num_gpus=2",),
            id="variables of env",
        ),
        pytest.param(
            "vllm serve openai/gpt-oss-20b --kv-cache-dtype fp8",
            "h100-80gb",
            ("policy=grouped_caching_v1", "++model.kv_dtype_bytes=1"),
            id="windows and a cache of 8 bits",
        ),
        pytest.param(
            f"{LLAMA} --max_model_len=8K --max-num-batched-tokens 4k",
            "h100-80gb",
            ("model.max_len=8192", "scheduler.max_num_batched_tokens=4000"),
            id="both kinds of thousand",
        ),
        pytest.param(
            f"{LLAMA} --no-async-scheduling --no-enable-prefix-caching",
            "h100-80gb",
            ("scheduler=vllm_v1", "policy=paged"),
            id="switches off",
        ),
        pytest.param(
            f"{LLAMA} --no-scheduler-reserve-full-isl",
            "h100-80gb",
            ("scheduler.scheduler_reserve_full_isl=false",),
            id="admission by the first chunk",
        ),
        pytest.param(
            "vllm serve deepseek-ai/DeepSeek-V3 -tp 8 --kv-cache-dtype fp8",
            "h200",
            ("policy.block_size=64",),
            id="the block of latents",
        ),
        pytest.param(
            LLAMA + """ --speculative-config '{"method": "ngram", "num_speculative_tokens": 4}'""",
            "h100-80gb",
            ("scheduler=vllm_v1", "speculation=ngram", "speculation.num_drafts=4"),
            id="drafts on the CPU",
        ),
        pytest.param(
            LLAMA + """ --speculative-config '{"method": "ngram", "num_speculative_tokens": 4, """
            """"prompt_lookup_max": 3}'""",
            "h100-80gb",
            ("speculation.lookup_min=3", "speculation.lookup_max=3"),
            id="the length of a look-up",
        ),
        pytest.param(
            f"{LLAMA} --num-gpu-blocks-override 9000 "
            """-sc '{"model": "yuhuili/EAGLE3-LLaMA", "num_speculative_tokens": 3}'""",
            "h100-80gb",
            ("speculation=eagle3", "speculation.num_drafts=3", "server.num_blocks=9000"),
            id="EAGLE-3 by its name",
        ),
    ],
)
def test_a_published_command_becomes_a_server(command, gpu, expected):
    assert set(expected) <= set(overrides(command, gpu))


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        pytest.param("--enforce-eager", ("without CUDA graphs",), id="eager"),
        pytest.param("--cpu-offload-gb 10", ("weights outside",), id="weights on the host"),
        pytest.param(
            """--kv-transfer-config '{"kv_connector":"NixlConnector"}'""",
            ("kv_connector NixlConnector", "OffloadingConnector"),
            id="a connector",
        ),
        pytest.param(
            "--kv-offloading-size 8",
            ("stores and evicts otherwise", "release=0.33"),
            id="offloading",
        ),
        pytest.param("--swap-space 4", ("is no option since vLLM 0.19",), id="an option of V0"),
        pytest.param("-O0", ("compiled code",), id="an optimization level"),
        pytest.param(
            """--compilation-config '{"cudagraph_mode": "NONE"}'""",
            ("CUDA graphs",),
            id="graphs in JSON",
        ),
        pytest.param(
            """--speculative-config '{"method": "ngram"}'""",
            ("num_speculative_tokens",),
            id="drafts without a number",
        ),
        pytest.param(
            """--speculative-config '{"method": "medusa", "num_speculative_tokens": 3}'""",
            ("medusa", "ngram"),
            id="another drafter",
        ),
        pytest.param(
            """--speculative-config '{"model": "meta-llama/Llama-3.2-1B", """
            """"num_speculative_tokens": 3, "draft_tensor_parallel_size": 1}'""",
            ("draft_tensor_parallel_size",),
            id="an option of drafts",
        ),
        pytest.param("--watermark 0.01", ("no option of vLLM 0.19",), id="of a later release"),
        pytest.param("--gpu-memory-utilisation 0.8", ("did you mean",), id="British spelling"),
        pytest.param("-ep", ("where experts lie",), id="expert parallelism"),
        pytest.param("--enable-eplb", ("where experts lie",), id="balanced experts"),
        pytest.param("--max-num-partial-prefills 2", ("at once",), id="partial prefills"),
    ],
)
def test_a_published_option_that_is_not_modelled_is_refused(options, parts):
    with pytest.raises(InputError) as refusal:
        overrides(f"{LLAMA} {options}")
    check_words(("vllm serve", *parts), str(refusal.value))


REFUSED_BY_VLLM = [
    ("vllm serve meta-llama/Llama-3.1-70B", "h100-80gb", "no available memory"),
    ("vllm serve mistralai/Mixtral-8x7B-Instruct-v0.1", "h100-80gb", "no available memory"),
    (f"{NEXT} -tp 2", "h100-80gb", "no available memory"),
    (f"{LLAMA} --gpu-memory-utilization 0.2", "h100-80gb", "no available memory"),
    (LLAMA, "l4", "larger than the available"),
    (f"{LLAMA} --kv-cache-memory-bytes 8589934592", "h100-80gb", "larger than the available"),
    ("vllm serve Qwen/Qwen3-30B-A3B-Instruct-2507", "h100-80gb", "larger than the available"),
    ("vllm serve Qwen/Qwen2.5-7B-Instruct -tp 8", "h100-80gb", "divisible by tensor parallel"),
    (f"{LLAMA} -tp 3", "h100-80gb", "divisible by tensor parallel"),
    (f"{LLAMA} --max-model-len 131073", "h100-80gb", "max_position_embeddings"),
    ("vllm serve facebook/opt-13b --max-model-len 4k", "h100-80gb", "max_position_embeddings"),
    (f"{LLAMA} --max-num-batched-tokens 64 --max-num-seqs 65", "h100-80gb", "max_num_seqs"),
    (
        f"{LLAMA} --no-enable-chunked-prefill --max-num-batched-tokens 4096",
        "h100-80gb",
        "chunked prefill is off",
    ),
    (f"{LLAMA} --gpu-memory-utilization 1.2", "h100-80gb", "at most 1"),
    (f"{LLAMA} --block-size 5 --kv-cache-dtype fp8", "h100-80gb", "multiples of 16"),
    (f"{LLAMA} --max-num-seqs 0", "h100-80gb", "at least 1"),
]
STARTED_BY_VLLM = [
    (LLAMA, "h100-80gb"),
    ("vllm serve meta-llama/Llama-3.1-70B -tp 4", "h100-80gb"),
    ("vllm serve mistralai/Mixtral-8x7B-Instruct-v0.1 -tp 2", "h100-80gb"),
    (f"{NEXT} -tp 2", "h200"),
    (f"{LLAMA} --gpu-memory-utilization 0.5 --max-model-len 16384", "h100-80gb"),
    (f"{LLAMA} --max-model-len 8192", "l4"),
    (f"{LLAMA} --kv-cache-memory-bytes 17179869184", "h100-80gb"),
    ("vllm serve Qwen/Qwen3-30B-A3B-Instruct-2507 --max-model-len 65536", "h100-80gb"),
    ("vllm serve Qwen/Qwen2.5-7B-Instruct -tp 4", "h100-80gb"),
    (f"{LLAMA} -tp 8", "h100-80gb"),
    (f"{LLAMA} --max-model-len 131072", "h100-80gb"),
    ("vllm serve facebook/opt-13b --max-model-len 2048", "h100-80gb"),
    (f"{LLAMA} --max-num-batched-tokens 512 --max-num-seqs 512", "h100-80gb"),
    (f"{LLAMA} --no-enable-chunked-prefill --max-model-len 8192", "h100-80gb"),
    (f"{LLAMA} --num-gpu-blocks-override 100", "h100-80gb"),
    (f"{LLAMA} --block-size 32", "h100-80gb"),
    (f"{LLAMA} --gpu-memory-util 0.8", "h100-80gb"),
]


@pytest.mark.parametrize(("command", "gpu", "part"), REFUSED_BY_VLLM)
def test_a_server_that_vllm_refuses_is_refused(command, gpu, part):
    with pytest.raises(InputError, match=part):
        fit_of(command, gpu)
    with pytest.raises(InputError, match=part):
        overrides(command, gpu)


@pytest.mark.parametrize(("command", "gpu"), STARTED_BY_VLLM)
def test_a_server_that_vllm_starts_is_not_refused(command, gpu):
    assert fit_of(command, gpu).kv_tokens > 0
    overrides(command, gpu)


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ("--speculative-config.a x --speculative_config.b=3", {"a": "x", "b": 3}),
        ("""--speculative-config.a 2 --speculative-config '{"b": 1}'""", {"a": 2}),
        ("-sc.a.b true -sc.a.c 1.5", {"a": {"b": True, "c": 1.5}}),
        ("-sc.l+ 1,2 -sc.l+ 3", {"l": ["1", "2", "3"]}),
        ("-sc.a 80g -sc.b 1k", {"a": 80 * 10**9, "b": 1000}),
    ],
)
def test_keys_behind_dots_are_json_as_in_the_parser_of_vllm(options, value):
    """They replace the option's own JSON, wherever it stands."""
    command = read_command(f"vllm serve opt-13b {options}")
    assert json.loads(command.values["--speculative-config"]) == value


def test_an_object_of_a_config_file_is_json(tmp_path):
    path = tmp_path / "server.yaml"
    path.write_text("speculative-config: {method: ngram, num_speculative_tokens: 2}\n")
    command = read_command(f"vllm serve opt-13b --config {path}")
    found = json.loads(command.values["--speculative-config"])
    assert found == {"method": "ngram", "num_speculative_tokens": 2}
