"""`--from-vllm`: what a command of vLLM's server means here, and what is refused."""

import pytest

from testbed.core.errors import InputError
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.overrides import expand, translated

SERVE = "vllm serve meta-llama/Llama-3.1-8B-Instruct"
ON_H200 = ("gpu=h200",)


def test_flags_become_options_and_others_are_reported(capsys):
    flags = "--gpu-memory-utilization 0.92 --tensor-parallel-size=4 --max-num-batched-tokens 8k --port 80"
    flags += " --max-model-len 32K"
    config = configured(expand(f"{SERVE} {flags}", ["gpu=h100-80gb", "seed=2"]))
    assert (config.model.name, config.model.max_len, config.workload.max_len) == ("llama-3.1-8b", 32768, 32768)
    assert (config.server.gpu.name, config.server.num_gpus) == ("h100-80gb", 4)
    assert config.server.memory_utilization == 0.92
    assert config.scheduler.name.endswith("AsyncVllmV1")
    assert config.scheduler.parameters["max_num_batched_tokens"] == 8000
    assert config.seed == 2
    assert "ignored: --port 80" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("gpu", "limits"),
    [("h100-80gb", (8192, 1024)), ("h200", (8192, 1024)), ("a100-80gb", (2048, 256)), ("l4", (2048, 256))],
)
def test_defaults_are_those_of_vllm_serve_on_the_gpu(gpu, limits):
    parameters = configured(expand(SERVE, [f"gpu={gpu}"])).scheduler.parameters
    assert (parameters["max_num_batched_tokens"], parameters["max_num_seqs"]) == limits


def test_switches_and_kv_types():
    words, ignored = translated(f"{SERVE} --no-enable-prefix-caching --kv-cache-dtype fp8 -tp 2", ["gpu=h200"])
    assert {"policy=paged", "policy.watermark=0", "++model.kv_dtype_bytes=1", "server.num_gpus=2"} <= set(words)
    assert not ignored


def test_options_of_the_line_win():
    words = expand(f"{SERVE} --max-num-seqs 64", ["gpu=h200", "scheduler.max_num_seqs=32", "model=opt-13b"])
    assert [word for word in words if "max_num_seqs" in word] == ["scheduler.max_num_seqs=32"]
    assert [word for word in words if word.startswith("model=")] == ["model=opt-13b"]


@pytest.mark.parametrize(
    ("command", "others", "message"),
    [
        (SERVE, (), "does not say on which GPU"),
        ("vllm serve org/Strange-7B", ON_H200, "has no shape here"),
        ("vllm bench", ON_H200, "is not a command of vLLM's server"),
        (f"{SERVE} --max-num-seqs many", ON_H200, "--max-num-seqs many: is no number"),
        (f"{SERVE} --quantization awq", ON_H200, "changes the result"),
        (f"{SERVE} --kv-cache-dtype int3", ON_H200, "int3: is unknown"),
        ("vllm 'serve", ON_H200, "cannot be read"),
    ],
)
def test_bad_commands_are_refused(command, others, message):
    with pytest.raises(InputError, match=message):
        expand(command, others)
