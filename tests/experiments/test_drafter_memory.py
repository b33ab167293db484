"""The memory of drafters: bytes of the matrices that vLLM's own classes make.

Counted on vLLM 0.33.0 and 0.19.0: each class on torch's meta device, less the matrices of the
vocabulary that it shares with the model. Guesses that were wrong: K and V of an EAGLE-3 drafter are
those of one layer (not half of them), its weights were 1.9 times those of a layer of the model; it
has an output projection of the whole vocabulary if config.json has no draft_vocab_size; the
projection that joins hidden states is whole on each GPU, but for Qwen3-Next's.
"""

import json

import pytest
from hf_configs import SMALL

from testbed.core.errors import InputError
from testbed.core.hf_config import model_of
from testbed.core.specs import GIB
from testbed.experiments.runs.compose import configured
from testbed.experiments.vllm_server.answer import fit_of, lines_of
from testbed.experiments.vllm_server.named_server import server_of
from testbed.speculation.drafter_memory import drafter_memory
from testbed.vllm.command import read_command
from testbed.vllm.releases import release_numbered

TARGET = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]} | SMALL
LAYER = TARGET | {"num_hidden_layers": 1}
WHOLE = LAYER | {"architectures": ["LlamaForCausalLMEagle3"]}
EAGLE3 = WHOLE | {"draft_vocab_size": 8000}
FIVE = EAGLE3 | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2, 2, 1]}}
OTHER = {"num_attention_heads": 32, "head_dim": 64, "num_key_value_heads": 8}
EMBEDDING = 32064 * 1024 * 2
ONE_GPU, FOUR = "", "--tensor-parallel-size 4"
# the drafter's config.json, method, release, GPUs, and bytes of its matrices on each GPU
COUNTED = {
    "eagle3": (EAGLE3, "eagle3", "0.33", ONE_GPU, 114_032_640 - EMBEDDING),
    "two layers": (
        EAGLE3 | {"num_hidden_layers": 2},
        "eagle3",
        "0.33",
        ONE_GPU,
        136_577_024 - EMBEDDING,
    ),
    "whole vocabulary": (WHOLE, "eagle3", "0.33", ONE_GPU, 163_315_712 - EMBEDDING),
    "other sizes": (
        EAGLE3 | OTHER | {"intermediate_size": 4096},
        "eagle3",
        "0.33",
        ONE_GPU,
        130_285_568 - EMBEDDING,
    ),
    "five states": (FIVE, "eagle3", "0.33", ONE_GPU, 118_226_944 - EMBEDDING),
    "five states, 0.19": (FIVE, "eagle3", "0.19", ONE_GPU, 114_032_640 - EMBEDDING),
    "no states": (
        EAGLE3 | {"eagle_config": {"use_aux_hidden_state": False}},
        "eagle3",
        "0.33",
        ONE_GPU,
        107_741_184 - EMBEDDING,
    ),
    "narrower, with an embedding": (
        EAGLE3 | {"hidden_size": 512, "target_hidden_size": 1024, "num_attention_heads": 8},
        "eagle3",
        "0.33",
        ONE_GPU,
        55_443_456,
    ),
    "eagle": (
        LAYER | {"architectures": ["EagleLlamaForCausalLM"]},
        "eagle",
        "0.33",
        ONE_GPU,
        92_405_760 - EMBEDDING,
    ),
    "eagle3, 4 GPUs": (EAGLE3, "eagle3", "0.33", FOUR, 33_226_752 - EMBEDDING // 4),
    "eagle, 4 GPUs": (
        LAYER | {"architectures": ["EagleLlamaForCausalLM"]},
        "eagle",
        "0.33",
        FOUR,
        26_247_168 - EMBEDDING // 4,
    ),
}


def folder_of(path, config):
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    return path


def drafting(model, method, drafter=None):
    values = {"method": method, "num_speculative_tokens": 3}
    values |= {} if drafter is None else {"model": str(drafter)}
    return f"vllm serve {model} --max-model-len 2048 --speculative-config '{json.dumps(values)}'"


@pytest.mark.parametrize("case", COUNTED)
def test_a_drafter_has_the_bytes_of_vllm_s_class(tmp_path, case):
    config, method, release, gpus, counted = COUNTED[case]
    model = folder_of(tmp_path / "model", TARGET)
    drafter = folder_of(tmp_path / "drafter", config)
    command = f"{drafting(model, method, drafter)} {gpus}"
    fit = fit_of(command, "h100-80gb", release_numbered(release))
    assert round(fit.drafter_gib * GIB) == counted
    assert fit.assumptions == ()


def test_a_model_that_drafts_shares_nothing():
    """Llama-3.2-1B ties its matrices of the vocabulary: 1,235,746,816 weights without norms."""
    fit = fit_of(drafting("meta-llama/Llama-3.1-8B", "draft_model", "llama-3.2-1b"), "h100-80gb")
    assert round(fit.drafter_gib * GIB) == 2 * (973_078_528 + 262_668_288)


def test_the_folder_of_a_whole_model_is_read(tmp_path):
    model, drafter = folder_of(tmp_path / "model", TARGET), folder_of(tmp_path / "drafter", LAYER)
    fit = fit_of(drafting(model, "draft_model", drafter), "h100-80gb")
    shape = model_of(drafter / "config.json")
    assert round(fit.drafter_gib * GIB) == shape.weight_bytes
    quantised = LAYER | {"quantization_config": {"quant_method": "fp8"}}
    (drafter / "config.json").write_text(json.dumps(quantised))
    with pytest.raises(InputError, match="quantised"):
        fit_of(drafting(model, "draft_model", drafter), "h100-80gb")


def test_a_drafter_without_a_shape_has_remedies_of_its_own():
    """An option model= would change the model that serves."""
    with pytest.raises(InputError) as raised:
        fit_of(drafting("facebook/opt-13b", "draft_model", "facebook/opt-125m"), "h100-80gb")
    assert "folder" in raised.value.remedy
    assert "model=" not in raised.value.remedy


@pytest.mark.parametrize(("cached", "token_bytes"), [("auto", 163_840), ("fp8", 81_920)])
def test_a_model_that_drafts_has_the_cache_of_the_one_that_serves(cached, token_bytes):
    """As vLLM 0.33's layers have it: 32 layers of 8 heads of 128, and 16 of 8 heads of 64."""
    command = drafting("meta-llama/Llama-3.1-8B", "draft_model", "llama-3.2-1b")
    fit = fit_of(f"{command} --kv-cache-dtype {cached} --kv-cache-memory-bytes 4G", "h100-80gb")
    assert fit.num_blocks == (4 << 30) // (16 * token_bytes)


def test_mtp_layers_have_the_bytes_of_vllm_s_class():
    """Qwen3-Next's class has 4,545,581,056 bytes, two of whose matrices are the model's own."""
    vocabulary = 2 * 151_936 * 2048 * 2
    of_gpu = (4_545_581_056 - vocabulary) / 4
    command = f"{drafting('Qwen/Qwen3-Next-80B-A3B-Instruct', 'mtp')} {FOUR}"
    fit = fit_of(command, "h100-80gb")
    assert fit.drafter_gib * GIB == pytest.approx(of_gpu, rel=0.001)


def test_the_published_drafter_of_llama_8b():
    """1,900,019,712 bytes of Eagle3LlamaForCausalLM, less the embedding that it shares."""
    server = drafting(
        "meta-llama/Llama-3.1-8B-Instruct", "eagle3", "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"
    )
    fit = fit_of(server, "h100-80gb")
    assert round(fit.drafter_gib * GIB) == 1_900_019_712 - 128_256 * 4096 * 2
    assert "32,000 tokens" in fit.assumptions[0]


@pytest.mark.parametrize(
    ("model", "method", "drafter", "named"),
    [
        ("Qwen/Qwen3-30B-A3B", "eagle3", "some/drafter", "folder of its config.json"),
        ("deepseek-ai/DeepSeek-V2-Lite", "eagle3", "some/drafter", "latent attention"),
        ("meta-llama/Llama-3.1-8B", "eagle3", None, "needs a model that drafts"),
        ("meta-llama/Llama-3.1-8B", "draft_model", None, "needs a model that drafts"),
        ("meta-llama/Llama-3.1-8B", "draft_model", "", "needs a model that drafts"),
    ],
)
def test_a_drafter_without_a_shape_is_refused(model, method, drafter, named):
    with pytest.raises(InputError, match=named):
        fit_of(drafting(model, method, drafter), "h100-80gb")


def test_beside_experts_the_folder_of_a_drafter_gives_its_columns(tmp_path):
    """As the refusal says of a drafter without one."""
    drafter = folder_of(tmp_path / "drafter", EAGLE3 | {"target_hidden_size": 2048})
    assert fit_of(drafting("Qwen/Qwen3-30B-A3B", "eagle3", drafter), "h100-80gb").drafter_gib > 0


QWEN2 = LAYER | {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
NARROW = {"hidden_size": 512, "num_attention_heads": 8}
QWEN3 = EAGLE3 | {"architectures": ["Eagle3Qwen3ForCausalLM"]}


@pytest.mark.parametrize(
    ("method", "config", "release", "problem"),
    [
        ("eagle", QWEN2, "0.33", "no EagleQwen2ForCausalLM"),
        ("eagle", EAGLE3, "0.33", "no EagleLlamaForCausalLMEagle3"),
        ("eagle3", QWEN3, "0.20", "no Eagle3Qwen3ForCausalLM"),
        ("eagle3", EAGLE3 | NARROW, "0.33", "hidden states of 512"),
        ("eagle", LAYER | NARROW | {"target_hidden_size": 1024}, "0.33", "hidden states of 512"),
    ],
)
def test_a_drafter_that_cannot_draft_for_the_model_is_refused(
    tmp_path, method, config, release, problem
):
    """As vLLM's registry and the projections of llama_eagle.py and llama_eagle3.py have it."""
    model = folder_of(tmp_path / "model", TARGET)
    drafter = folder_of(tmp_path / "drafter", config)
    with pytest.raises(InputError, match=problem):
        fit_of(drafting(model, method, drafter), "h100-80gb", release_numbered(release))


def test_a_whole_model_is_no_drafter_of_eagle():
    command = drafting("Qwen/Qwen2.5-7B-Instruct", "eagle", "Qwen/Qwen2.5-0.5B-Instruct")
    with pytest.raises(InputError, match="whole model"):
        fit_of(command, "h100-80gb")


def test_a_drafter_of_other_layers_is_refused(tmp_path):
    model = folder_of(tmp_path / "model", TARGET)
    opt = EAGLE3 | {"model_type": "opt", "ffn_dim": 2816, "num_key_value_heads": None}
    drafter = folder_of(tmp_path / "drafter", opt)
    with pytest.raises(InputError, match="not Llama's"):
        fit_of(drafting(model, "eagle3", drafter), "h100-80gb")


@pytest.mark.parametrize(("method", "config"), [("eagle3", EAGLE3 | OTHER), ("draft_model", LAYER)])
def test_a_run_has_the_pool_of_its_command(tmp_path, method, config):
    """The words of a command build the same drafter."""
    model = folder_of(tmp_path / "model", TARGET)
    drafter = folder_of(tmp_path / "drafter", config)
    server = server_of(read_command(drafting(model, method, drafter)), "h100-80gb")
    words = ["+system=vllm-v1", "gpu=h100-80gb", *server.speculative.words]
    speculation = configured(words).speculation.make("speculation")
    assert drafter_memory(speculation, server.model, 1) == server.drafter


@pytest.mark.parametrize(
    ("options", "gpu", "named"),
    [
        ("", "h100-80gb", "expected error: 0.05 GiB"),
        ("--max-num-seqs 64 --max-num-batched-tokens 2048", "h100-80gb", "0.77 GiB more"),
        ("--max-num-seqs 64 --max-num-batched-tokens 2048", "l40s", "1 x l40s: not measured"),
        ("--max-num-seqs 64 --max-num-batched-tokens 2048", "l40s", "0.77 GiB more"),
        ("", "l40s", "256 sequences, 2,048 tokens, 1 x l40s: not measured"),
        ("", "l40s", "0.77 GiB more"),
        ("--max-num-batched-tokens 4096", "h100-80gb", "one H100 with 1,024 sequences, 2,048"),
        ("--max-num-seqs 256", "h100-80gb", "256 sequences, 8,192 tokens: not measured"),
        ("--tensor-parallel-size 8", "h100-80gb", "8 x h100-80gb: not measured"),
        ("", "h200", "1 x h200: not measured"),
        ("--enable-lora", "h100-80gb", "LoRA adapters: not measured"),
        ("--enable-lora", "h100-80gb", "the time that adapters take is not modelled"),
    ],
)
def test_the_expected_error_is_that_of_the_case(options, gpu, named):
    fit = fit_of(f"vllm serve meta-llama/Llama-3.1-8B {options}", gpu)
    assert named in "\n".join(lines_of(fit))


def test_the_error_of_a_model_with_states_is_not_that_of_others():
    server = "vllm serve Qwen/Qwen3-Next-80B-A3B-Instruct --tensor-parallel-size 4"
    fit = fit_of(f"{server} --max-model-len 8192", "h100-80gb")
    assert fit.unlogged == ("states of layers",)
    assert "expected error" not in "\n".join(lines_of(fit))
