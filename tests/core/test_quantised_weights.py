"""Weights of quantised checkpoints of which layers are left out, or differ, as vLLM 0.33 has them.

The bytes are those of its own classes on torch's meta device (quantised_weights.json).
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from refusals import refuses

from testbed.core.divided_weights import bytes_on_gpu
from testbed.core.errors import DoesNotStart, InputError
from testbed.core.hf_config import model_of
from testbed.experiments.vllm_server.answer import fit_of
from testbed.vllm.checkpoints import check_checkpoint
from testbed.vllm.releases import RELEASES

MEASURED = json.loads(
    (Path(__file__).parents[1] / "inputs" / "quantised_weights.json").read_text(encoding="utf-8")
)
PUBLISHED = json.loads(
    (Path(__file__).parents[1] / "inputs" / "published_models.json").read_text(encoding="utf-8")
)
LLAMA = MEASURED["configs"]["llama"]
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}


@pytest.fixture
def file_of(tmp_path):
    def write(quantization_config, config=LLAMA):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({**config, "quantization_config": quantization_config}))
        return path

    return write


@pytest.mark.parametrize("name", MEASURED["rows"])
def test_weights_have_the_bytes_of_vllm(file_of, name):
    row = MEASURED["rows"][name]
    path = file_of(row["quantization_config"], MEASURED["configs"][row["config"]])
    # beside linear layers and vocabulary are norms, and scales of channels
    assert model_of(path).weight_bytes == pytest.approx(row["bytes"], rel=0.0008)


def test_projections_to_latents_may_have_bits_of_their_own(file_of):
    """Each GPU has all of them: 16 bits beside others of 4.5 (nvidia/DeepSeek-V3.1-NVFP4)."""
    left = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "*self_attn*"]}
    model = model_of(file_of(left, MEASURED["configs"]["latents"]))
    assert model.copied_bits == 16 > model.weight_bits
    uneven = replace(model, copied_bits=None)
    less = [bytes_on_gpu(shape, model.weight_bytes, 8) for shape in (uneven, model)]
    narrow = 4 * 1024 * (512 + 512 + 64) * (16 - model.weight_bits) / 8
    assert less[1] - less[0] == pytest.approx(narrow * 7 / 8)


def test_some_of_the_matrices_of_a_layer_are_not_quantised_alone(file_of):
    left = {"quant_method": "fp8", "ignored_layers": ["model.layers.0.self_attn.q_proj"]}
    refuses("quantization_config", model_of, file_of(left))


FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
OF_MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8"}
SIGLIP = "vision_tower.vision_model.encoder.layers.0.self_attn."
FLOATS = {"num_bits": 8, "type": "float"}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": FLOATS}},
}


@pytest.mark.parametrize(
    ("model", "quantization", "left", "is_read"),
    [
        ("qwen3-vl-4b", FP8, [], False),
        ("qwen3-vl-4b", FP8, ["model.visual.blocks.0.attn.qkv"], True),
        ("qwen3-vl-4b", FP8, ["visual.blocks.0.attn.qkv"], True),
        ("qwen3-vl-4b", FP8, ["visual"], False),  # the whole name of a layer counts
        ("qwen3-vl-4b", COMPRESSED, [], False),
        ("qwen3-vl-4b", COMPRESSED, ["re:.*visual.*"], True),
        ("qwen3-vl-4b", OF_MODELOPT, [], False),
        ("qwen3-vl-4b", OF_MODELOPT, ["model.visual*"], True),
        ("qwen3-vl-4b", AWQ, [], True),  # vLLM looks into the files of its weights
        ("qwen3-vl-4b", GPTQ, [], True),
        ("qwen3.5-9b", FP8, [], False),
        ("gemma-3-4b", FP8, [], False),
        ("gemma-3-4b", FP8, [f"model.{SIGLIP}{name}_proj" for name in "qkv"], True),
        ("gemma-3-4b", OF_MODELOPT, [], True),
        ("gemma-4-31b", FP8, [], True),
        ("gemma-4-31b", COMPRESSED, [], False),
        ("kimi-k2.5", FP8, [], False),
        ("kimi-k2.5", COMPRESSED, [], True),
        ("kimi-vl-a3b", FP8, [], True),
        ("llama-4-scout-17b-16e", COMPRESSED, [], True),
    ],
)
def test_an_encoder_of_images_is_left_in_16_bits(file_of, model, quantization, left, is_read):
    """As vLLM 0.33's classes quantise it or not: weights in 8 bits would be counted in 16."""
    names = "modules_to_not_convert" if quantization["quant_method"] == "fp8" else "ignore"
    config = json.loads(json.dumps(PUBLISHED[model]["config"]))
    config.get("text_config", config).pop("quantization_config", None)
    path = file_of({**quantization, names: ["lm_head", *left]}, config)
    if is_read:
        assert model_of(path).vision_params
    else:
        refuses("encoder of images", model_of, path)


def test_a_quantization_of_the_whole_file_is_before_that_of_its_text(file_of):
    """As vLLM 0.33 reads Kimi-K2.5's with both: 40% more bytes by the outer one."""
    config = json.loads(json.dumps(PUBLISHED["kimi-k2.5"]["config"]))
    assert config["text_config"]["quantization_config"]["config_groups"]
    both = model_of(file_of(COMPRESSED, config))
    del config["text_config"]["quantization_config"]
    assert model_of(file_of(COMPRESSED, config)).weight_bytes == both.weight_bytes


def test_the_output_projection_may_be_quantised_too(file_of):
    """As vLLM 0.33's own classes start: 4 bits and a group's share, or ModelOpt's 8."""
    packed = model_of(file_of({**GPTQ, "lm_head": True}))
    assert packed.head_bits == packed.weight_bits == 4 + 20 / 128
    of_eight = model_of(file_of({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": []}))
    saved = 32000 * 1024 * (16 - packed.head_bits) / 8
    assert packed.weight_bytes + round(saved) == model_of(file_of(GPTQ)).weight_bytes
    assert of_eight.head_bits == 8
    tied = {**LLAMA, "tie_word_embeddings": True}
    refuses("tied embedding", model_of, file_of({**GPTQ, "lm_head": True}, tied))


LEFT = {"-:.*layers\\.0\\..*": {}}


OF_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "rotary_dim": 64}


@pytest.mark.parametrize(
    ("kind", "left", "bits"),
    [
        ("mixtral", "re:.*block_sparse_moe.*", 16),
        ("mixtral", "re:.*mlp.*", None),
        ("minimax_m2", "re:.*mlp.*", 16),  # vLLM's own name, which its files do not have
        ("minimax_m2", "re:.*block_sparse_moe.*", None),
    ],
)
def test_experts_are_left_by_the_names_that_vllm_has(file_of, kind, left, bits):
    config = {**LLAMA, **OF_EXPERTS, "model_type": kind}
    model = model_of(file_of({**COMPRESSED, "ignore": ["lm_head", left]}, config))
    assert model.experts.bits == bits
    for one in ("re:.*gate_proj.*", "re:.*w1.*"):  # releases match one of these names
        refuses("and not all", model_of, file_of({**COMPRESSED, "ignore": [one]}, config))


@pytest.mark.parametrize(
    ("kind", "experts"),
    [("gpt_oss", OF_EXPERTS), ("phimoe", OF_EXPERTS), ("qwen3_next", {}), ("opt", {})],
)
def test_the_head_of_some_classes_is_not_quantised(file_of, kind, experts):
    alike = {
        "num_key_value_heads": 16,
        "head_dim": 64,
        "ffn_dim": 2048,
        "word_embed_proj_dim": 1024,
    }
    config = {**LLAMA, **alike, **experts, "model_type": kind, "tie_word_embeddings": False}
    assert model_of(file_of({**OF_MODELOPT, "ignore": []}, config)).head_bits is None


@pytest.mark.parametrize(
    "names", [{"ignore": ["*attn*"]}, {"quantization": {"quant_algo": "FP8", "ignore": ["*attn*"]}}]
)
def test_names_of_a_class_that_has_others_are_not_read(file_of, names):
    config = {**LLAMA, **OF_EXPERTS, "model_type": "gpt_oss"}
    refuses("names of layers", model_of, file_of({**OF_MODELOPT, **names}, config))
    mxfp4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    assert model_of(file_of(mxfp4, config)).experts.bits == 4.25
    of_others = {"config_groups": 3, "quantization": "x"}
    assert model_of(file_of(AWQ | of_others, config)) == model_of(file_of(AWQ, config))


@pytest.mark.parametrize(
    "quantization_config",
    [
        {**GPTQ, "modules_in_block_to_quantize": [["self_attn.k_proj"]]},
        {
            "quant_method": "modelopt",
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {"model.layers.0.mlp": {"quant_algo": "FP8"}},
        },
    ],
)
def test_names_of_quantised_layers_of_such_a_class_are_not_read_either(
    file_of, quantization_config
):
    config = {**LLAMA, **OF_EXPERTS, "model_type": "gpt_oss"}
    refuses("names of layers", model_of, file_of(quantization_config, config))


def test_compressed_tensors_may_name_the_output_projection(file_of):
    """The class Linear alone is none; a tied one is refused."""
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "group_size": 128}
    group = {"targets": ["Linear", "re:.*lm_head"], "weights": {**weights, "strategy": "group"}}
    named = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}
    assert model_of(file_of(named)).head_bits == 4 + 16 / 128
    assert model_of(file_of({**named, "ignore": ["lm_head"]})).head_bits is None
    plain = {**named, "config_groups": {"group_0": {**group, "targets": ["Linear"]}}}
    assert model_of(file_of(plain)).head_bits is None
    tied = {**LLAMA, "tie_word_embeddings": True}
    refuses("tied embedding", model_of, file_of(named, tied))


@pytest.mark.parametrize("kept", [{"lm_head": True}, {"dynamic": LEFT}])
def test_stages_of_layers_of_other_bits_are_not_modelled(file_of, kept):
    """Each stage of vLLM has the bytes of its own layers, and not the model's mean."""
    folder = file_of({**GPTQ, **kept}).parent
    assert fit_of(f"vllm serve {folder}", "h100-80gb").weights_gib > 0
    with pytest.raises(InputError, match="pipeline"):
        fit_of(f"vllm serve {folder} -pp 2", "h100-80gb")


def test_the_names_of_awq_s_own_file_are_read(file_of):
    own = {"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "zero_point": True}
    assert model_of(file_of(own)).weight_bits == 4 + 20 / 64


@pytest.mark.parametrize(
    ("quantization", "starts"),
    [
        (GPTQ, "all"),
        ({**GPTQ, "desc_act": True}, "before 0.33"),
        ({**GPTQ, "desc_act": True, "group_size": -1}, "all"),
        ({**GPTQ, "sym": False}, "before 0.28"),
        ({**GPTQ, "bits": 3}, "before 0.28"),
        ({**GPTQ, "group_size": 48}, "before 0.28"),
        ({**GPTQ, "bits": 5}, "none"),
        (AWQ, "all"),
        ({**AWQ, "bits": 8}, "before 0.28"),
        ({**AWQ, "bits": 3}, "none"),
        ({"config_groups": {"a": {"weights": {"actorder": "group"}}}}, "before 0.33"),
        ({"config_groups": {"a": {"weights": {"actorder": "static"}}}}, "all"),
    ],
)
def test_a_release_reads_the_checkpoints_that_vllm_does(file_of, quantization, starts):
    path = file_of({"quant_method": "compressed-tensors"} | quantization)
    firsts = {"all": "9", "none": "0", "before 0.33": "0.33", "before 0.28": "0.28"}
    for number, release in RELEASES.items():
        if number < firsts[starts]:
            check_checkpoint(path, release)
        else:
            refuses("does not start", check_checkpoint, path, release, error=DoesNotStart)


@pytest.mark.parametrize(
    ("asked", "starts"), [("awq", True), ("awq_marlin", True), ("gptq", False), ("fp8", False)]
)
def test_a_command_names_the_checkpoint_s_own_method(file_of, asked, starts):
    path, release = file_of(AWQ), RELEASES["0.33"]
    words = f"vllm serve {path.parent} --max-model-len 2048 --quantization {asked}"
    if starts:
        assert fit_of(words, "h100-80gb", release).weights_gib < 0.15
    else:
        refuses("another method", fit_of, words, "h100-80gb", release, error=DoesNotStart)
