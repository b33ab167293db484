"""A model that stands in for a command's has weights of the type that the command's name says."""

import re

import pytest

from testbed.core.errors import InputError
from testbed.experiments.runs.notes import no_note
from testbed.experiments.sglang_server.translation import expand as of_sglang
from testbed.experiments.vllm_server.answer import fit_of
from testbed.experiments.vllm_server.translation import expand

PUBLISHED = re.compile(r"model=(\S+/[\w.-]+)")
NVIDIA = "vllm serve nvidia/Llama-3.3-70B-Instruct-FP8 -tp 2 --max-model-len 8192"


def server(name):
    return f"vllm serve my-org/my-32b-{name}"


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("fp8", 8),
        ("FP8-dynamic-v2", 8),
        ("gptq-int8", 8),
        ("w4a16-g128-v2", 4.125),
        ("AWQ-tuned", 4.15625),
        ("gptq-int4", 4.15625),
        ("NVFP4", 4.5),
    ],
)
def test_a_quantised_name_needs_quantised_weights_and_the_way_out_leads_on(name, bits):
    with pytest.raises(InputError) as refusal:
        fit_of(server(name), "h200", model="qwen3-32b")
    way_out = PUBLISHED.search(str(refusal.value))[1]
    plain = fit_of(server("v2"), "h200", model="qwen3-32b")
    assert fit_of(server(name), "h200", model=way_out).weights_gib < plain.weights_gib
    words = expand(server(name), ["gpu=h200", f"model={way_out}"], no_note)
    assert f"++model.weight_bits={bits:g}" in words
    with pytest.raises(InputError):
        expand(server(name), ["gpu=h200", "model=qwen3-32b"], no_note)


@pytest.mark.parametrize("name", ["unsloth-bnb-4bit", "mxfp4", "Q4_K_M-GGUF", "3bit"])
def test_a_quantisation_without_a_published_end_leads_to_a_file(name):
    with pytest.raises(InputError, match="weight_bits"):
        fit_of(server(name), "h100-80gb", model="qwen3-32b")


@pytest.mark.parametrize(
    ("name", "model"), [("x-fp8", "deepseek-v3"), ("x-mxfp4", "gpt-oss-20b"), ("x", "qwen3-32b")]
)
def test_a_model_with_such_weights_stands_in_by_its_own_name(name, model):
    assert fit_of(f"vllm serve {name} -tp 8", "h200", model=model).model == model


def test_the_cache_of_a_checkpoint_of_nvidia_is_of_the_command():
    """ModelOpt's checkpoints say FP8 of the cache, which no other name says."""
    published = "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic"
    with pytest.raises(InputError, match="--kv-cache-dtype fp8"):
        fit_of(NVIDIA, "h100-80gb", model=published)
    in_fp8 = f"{NVIDIA} --kv-cache-dtype fp8"
    assert fit_of(in_fp8, "h100-80gb", model=published).weights_gib < 35


def test_a_server_of_sglang_is_read_so_too():
    command = "sglang serve --model-path my-org/my-32b-awq"
    with pytest.raises(InputError) as refusal:
        of_sglang(command, ["gpu=h200", "model=qwen3-32b"], no_note)
    way_out = PUBLISHED.search(str(refusal.value))[1]
    words = of_sglang(command, ["gpu=h200", f"model={way_out}"], no_note)
    assert "++model.weight_bits=4.15625" in words
