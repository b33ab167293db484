"""The memory of LoRA adapters: bytes of the slots that vLLM's own manager makes.

Counted on vLLM 0.33.0 and 0.19.0: LoRAModelManager on each model, of the meta device, with one
GPU and with four (gloo). Guesses that were wrong: a model with a tied embedding has adapters of its
output projection too; Mistral has none of either; Phi-3's fused projections have one A each.
"""

import json

import pytest
from hf_configs import SMALL

from testbed.core.errors import InputError
from testbed.core.hf_config import model_of
from testbed.experiments.vllm_server.answer import fit_of
from testbed.experiments.vllm_server.named import gpu_named
from testbed.vllm.adapters import adapter_bytes
from testbed.vllm.command import read_command
from testbed.vllm.option_reader import OptionReader
from testbed.vllm.releases import DEFAULT

LLAMA = {"model_type": "llama"}
QWEN3 = {"model_type": "qwen3", "head_dim": 128}
GEMMA2 = {"model_type": "gemma2", "head_dim": 128, "tie_word_embeddings": True}
TWO, ON_FOUR = "--max-loras 2", "--tensor-parallel-size 4"
# config.json, options, and bytes on each GPU
COUNTED = {
    "llama": (LLAMA, TWO, 7_725_056),
    "tied": ({**LLAMA, "tie_word_embeddings": True}, TWO, 7_725_056),
    "mistral": ({"model_type": "mistral", "sliding_window": None}, TWO, 3_489_792),
    "qwen2": ({"model_type": "qwen2"}, TWO, 3_489_792),
    "qwen3": (QWEN3, TWO, 8_216_576),
    "gemma2": (GEMMA2, TWO, 3_981_312),
    "phi3": ({"model_type": "phi3"}, TWO, 7_135_232),
    "granite": ({"model_type": "granite"}, TWO, 7_725_056),
    "llama, 4 GPUs": (LLAMA, f"{TWO} {ON_FOUR}", 6_139_904),
    "fewer heads than GPUs": ({**LLAMA, "num_key_value_heads": 2}, f"{TWO} {ON_FOUR}", 6_139_904),
    "qwen3, 4 GPUs": (QWEN3, f"{TWO} {ON_FOUR}", 6_262_784),
    "mistral, 4 GPUs": ({"model_type": "mistral"}, f"{TWO} {ON_FOUR}", 1_904_640),
    "phi3, 4 GPUs": ({"model_type": "phi3"}, f"{TWO} {ON_FOUR}", 5_550_080),
    "rank 64": (LLAMA, f"--max-loras 4 --max-lora-rank 64 {ON_FOUR}", 49_119_232),
    "sharded": (LLAMA, f"--max-lora-rank 8 --fully-sharded-loras {ON_FOUR}", 1_276_928),
    "qwen3, sharded": (
        QWEN3,
        f"--max-loras 3 --max-lora-rank 32 --fully-sharded-loras {ON_FOUR}",
        15_691_776,
    ),
}


@pytest.fixture
def bytes_of(tmp_path):
    """The bytes of the adapters of a config.json beside options."""

    def call(config, options):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({**SMALL, **config}))
        command = read_command(f"vllm serve {tmp_path} --enable-lora {options}")
        num_gpus = int(command.values.get("--tensor-parallel-size", "1"))
        model_type = config["model_type"]
        reader = OptionReader(command, DEFAULT, gpu_named("h100-80gb"))
        return adapter_bytes(reader, model_of(path), num_gpus, model_type)

    return call


@pytest.mark.parametrize("case", COUNTED)
def test_slots_have_the_bytes_that_vllm_s_manager_makes(bytes_of, case):
    config, options, counted = COUNTED[case]
    assert bytes_of(config, options) == counted


def test_fits_counts_the_adapters_with_the_weights(testbed):
    server = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 16384"
    lora = f"{server} --enable-lora --max-loras 4 --max-lora-rank 64"
    without, answer = (
        json.loads(testbed.done("fits", line, "gpu=h100-80gb", "--json")) for line in (server, lora)
    )
    assert without["adapters_gib"] == 0
    assert answer["adapters_gib"] * (1 << 30) == 1_477_705_728  # vLLM 0.33.0, on a meta device
    lost = without["kv_cache_gib"] - answer["kv_cache_gib"]
    assert lost == pytest.approx(answer["adapters_gib"], abs=0.002)  # of one block
    assert answer["notes"] == []


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("vllm serve Qwen/Qwen3-30B-A3B --enable-lora", "--enable-lora: which modules"),
        ("vllm serve Qwen/Qwen3-8B --enable-lora --max-lora-rank 20", "--max-lora-rank 20"),
        ("vllm serve Qwen/Qwen3-8B --enable-lora --lora-dtype float32", "--lora-dtype float32"),
        ("vllm serve Qwen/Qwen3-8B --enable-lora --lora-target-modules q_proj", "other modules"),
    ],
)
def test_adapters_that_are_not_counted_are_refused(testbed, command, named):
    assert named in testbed.refused("fits", command, "gpu=h100-80gb")


def test_fewer_adapters_in_host_memory_than_on_the_gpu_do_not_start(testbed):
    server = "vllm serve Qwen/Qwen3-8B --enable-lora --max-loras 2 --max-cpu-loras"
    assert testbed("fits", f"{server} 2", "gpu=h100-80gb")[0] == 0
    code, _, error = testbed("fits", f"{server} 1", "gpu=h100-80gb")
    assert code == 1
    assert "--max-cpu-loras 1" in error


def test_a_run_with_adapters_names_what_counts_their_memory(testbed):
    server = "vllm serve Qwen/Qwen3-8B --enable-lora"
    assert "testbed fits" in testbed.refused("run", "--from-vllm", server, "gpu=h100-80gb")


def test_a_server_without_room_for_its_adapters_names_them_and_their_options():
    command = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 16384 --enable-lora"
    with pytest.raises(InputError) as refusal:
        fit_of(f"{command} --max-loras 32 --max-lora-rank 256", "l40s")
    assert "44.04" in refusal.value.problem
    assert "--max-loras" in refusal.value.remedy
    assert fit_of(f"{command} --max-loras 8 --max-lora-rank 256", "l40s").adapters_gib < 44.04 / 3
