"""Shares that cut a group of a scale: servers that vLLM 0.33's own classes, on torch's meta device,
started or refused on an H100.
"""

import json
import re
from pathlib import Path

import pytest
from refusals import refuses

from testbed.core.errors import DoesNotStart
from testbed.experiments.vllm_server.answer import fit_of
from testbed.vllm.releases import release_numbered

PUBLISHED = json.loads(
    (Path(__file__).parents[1] / "inputs" / "published_models.json").read_text(encoding="utf-8")
)
LITE, DENSE, EXPERTS = "deepseek-v2-lite", "qwen2.5-14b", "qwen3-30b-a3b"
FLASH, SMALL, NEXT = "glm-4.7-flash", "llama-3.2-1b", "qwen3-next-80b-a3b"
NEWEST = release_numbered("0.33")
NARROW = {"moe_intermediate_size": 1152}  # 144 columns of an expert on each of 8 GPUs
WHOLE_EXPERTS = "--enable-expert-parallel"


def _awq(group):
    return {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True}


def _gptq(group):
    return {"quant_method": "gptq", "bits": 4, "group_size": group, "sym": True}


def _modelopt(algorithm):
    return {"quant_method": "modelopt", "quant_algo": algorithm, "ignore": ["lm_head"]}


def _compressed(bits, kind, group, activations=None):
    weights = {"num_bits": bits, "type": kind, "group_size": group, "symmetric": True}
    entry = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": entry},
        "ignore": ["lm_head", "re:.*mlp.gate$"],
    }


def _w4a16(group):
    return _compressed(4, "int", group)


def _blocks(ignored=(), size=(128, 128)):
    names = [f"model.layers.{number}.self_attn.{name}" for number in range(99) for name in ignored]
    block = {"weight_block_size": list(size), "activation_scheme": "dynamic"}
    return {"quant_method": "fp8", "modules_to_not_convert": names, **block}


def _compressed_blocks(*ignored, size=(128, 128)):
    floats = {"num_bits": 8, "type": "float"}
    weights = floats | {"strategy": "block", "block_structure": list(size)}
    inputs = floats | {"strategy": "group", "group_size": 128}
    entry = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": entry},
        "ignore": ["lm_head", "re:.*mlp.gate$", *ignored],
    }


LATENTS = ("q_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
NVFP4 = _compressed(4, "float", 16, {"num_bits": 4, "type": "float", "group_size": 16})
MXFP8_INPUTS = {"num_bits": 8, "type": "float", "group_size": 32}
MXFP8 = _compressed(8, "float", 32, MXFP8_INPUTS)
MXFP8["config_groups"]["group_0"]["weights"]["scale_dtype"] = "torch.uint8"


@pytest.mark.parametrize(
    ("model", "changes", "quantization", "words", "starts"),
    [
        (LITE, {}, _awq(128), "1", False),
        (LITE, {}, _awq(128), "4", False),
        (LITE, {}, _awq(64), "1", True),
        (LITE, {}, _awq(64), "2", False),
        (LITE, {}, _awq(64), f"4 {WHOLE_EXPERTS}", False),
        (LITE, {}, _gptq(128), "1", True),  # Machete's, for 10,944 is a multiple of 64
        (LITE, {}, _gptq(128), "2", False),
        (LITE, {}, _gptq(128), "4", False),
        (LITE, {}, _w4a16(32), "2", True),
        (LITE, {}, _w4a16(32), "4", False),
        (LITE, {}, _w4a16(128), f"4 {WHOLE_EXPERTS}", False),
        (LITE, {}, _modelopt("NVFP4"), "4", True),
        (LITE, {}, _modelopt("NVFP4"), "8", False),
        (LITE, {}, _modelopt("W4A16_NVFP4"), "8", False),
        (LITE, {}, _modelopt("MXFP8"), "2", True),
        (LITE, {}, _modelopt("MXFP8"), "4", False),
        (LITE, {}, _modelopt("FP8_PB_WO"), "1", False),
        (LITE, {}, NVFP4, "8", True),  # llm-compressor's is not compared with a group
        (LITE, {}, MXFP8, "4", True),
        (DENSE, {}, _awq(128), "4", True),
        (DENSE, {}, _awq(128), "8", False),
        (DENSE, {}, _gptq(128), "8", True),
        (DENSE, {}, _gptq(-1), "8", True),
        (DENSE, {}, _w4a16(128), "8", False),
        (DENSE, {}, _w4a16(None), "8", True),
        (EXPERTS, {}, _awq(128), "8", True),  # groups of experts are divided down to 32
        (EXPERTS, {}, _gptq(128), "8", True),
        (EXPERTS, {}, _w4a16(128), "4", False),
        (EXPERTS, {}, _w4a16(128), f"4 {WHOLE_EXPERTS}", True),
        (EXPERTS, NARROW, _awq(128), "8", False),
        (EXPERTS, NARROW, _gptq(128), "8", False),
        (EXPERTS, NARROW, _gptq(128), f"8 {WHOLE_EXPERTS}", True),
        (EXPERTS, NARROW, _modelopt("MXFP8"), "8", False),
        (EXPERTS, NARROW, MXFP8, "8", True),
        (EXPERTS, {"moe_intermediate_size": 576}, _modelopt("NVFP4"), "8", True),
        (LITE, {}, _blocks(), "1", True),  # an odd number of rows in a fused matrix
        (LITE, {}, _compressed_blocks(), "1", False),  # llm-compressor's, but for the last one
        (LITE, {}, _blocks(LATENTS), "2", False),
        (LITE, {}, _blocks(size=(64, 64)), "2", False),
        (DENSE, {}, _blocks(size=(64, 128)), "8", False),  # 1,728 columns, 3,456 rows
        (DENSE, {}, _blocks(size=(128, 64)), "8", True),
        (DENSE, {}, _compressed_blocks(size=(64, 128)), "8", False),
        (EXPERTS, {}, _blocks(size=(64, 128)), "8", True),
        (EXPERTS, {}, _blocks(size=(16, 128)), "8", False),  # 96 columns are rows too
        (EXPERTS, {}, _blocks(size=(128, 16)), "8", False),
        (EXPERTS, {}, _blocks(size=(16, 128)), "1", True),
        (EXPERTS, {}, _blocks(size=(16, 128)), f"8 {WHOLE_EXPERTS}", True),
        (FLASH, {}, _blocks(), "2", True),
        (FLASH, {}, _blocks(), "4", False),  # 2,240 rows of kv_b_proj
        (FLASH, {}, _blocks(("kv_b_proj",)), "4", True),
        (FLASH, {}, _compressed_blocks(), "4", False),
        (SMALL, {}, _blocks(), "8", True),
        (SMALL, {}, _compressed_blocks(), "4", True),
        (SMALL, {}, _compressed_blocks(), "8", False),  # 64 rows of one head of K
        (EXPERTS, {}, _compressed_blocks(), "4", False),  # blocks of experts are not divided
        (EXPERTS, {}, _compressed_blocks(), f"4 {WHOLE_EXPERTS}", True),
        (NEXT, {"num_hidden_layers": 8}, _blocks(), "1", True),
        (NEXT, {}, _blocks(), "2", False),  # 32 rows of the gates of its states
        (NEXT, {}, _compressed_blocks("re:.*linear_attn.*"), "4", True),
    ],
)
def test_shares_are_whole_groups(tmp_path, model, changes, quantization, words, starts):
    command = _served(tmp_path, model, changes | {"quantization_config": quantization}, words)
    if starts:
        assert fit_of(command, "h100-80gb", NEWEST).weights_gib > 0
    else:
        _is_cut(command, "h100-80gb")


@pytest.mark.parametrize(
    ("model", "group", "dtype", "words", "starts"),
    [
        (LITE, 128, "float16", "1", False),
        (LITE, 64, "float16", "2", True),  # Exllama's
        (LITE, 64, "bfloat16", "2", False),
        (DENSE, 128, "float16", "8", True),
        (DENSE, 128, "bfloat16", "8", False),
        (DENSE, 128, "bfloat16", "8 --dtype float16", True),
        (DENSE, -1, "bfloat16", "8", True),
    ],
)
def test_gptq_needs_whole_groups_in_bfloat16_before_hopper(
    tmp_path, model, group, dtype, words, starts
):
    changes = {"quantization_config": _gptq(group), "torch_dtype": dtype}
    command = _served(tmp_path, model, changes, words)
    if starts:
        assert fit_of(command, "a100-80gb", NEWEST).weights_gib > 0
    else:
        _is_cut(command, "a100-80gb")


@pytest.mark.parametrize(
    ("name", "num_gpus", "starts"),
    [
        ("Qwen/Qwen2.5-14B-Instruct-AWQ", 4, True),
        ("Qwen/Qwen2.5-14B-Instruct-AWQ", 8, False),
        ("Qwen/Qwen2.5-14B-Instruct-GPTQ-Int4", 8, True),
        ("RedHatAI/Qwen2.5-14B-Instruct-quantized.w4a16", 8, False),
        ("RedHatAI/Qwen2.5-14B-Instruct-FP8-dynamic", 8, True),
        ("RedHatAI/Qwen3-30B-A3B-FP8-block", 4, False),
    ],
)
def test_a_name_has_the_groups_of_its_quantization(name, num_gpus, starts):
    command = f"vllm serve {name} --max-model-len 2048 -tp {num_gpus}"
    if starts:
        assert fit_of(command, "h100-80gb", NEWEST).weights_gib > 0
    else:
        _is_cut(command, "h100-80gb")


NO_TEXTS = ("128", "x", "128xx128", "x128x128", "128x128xfoo", "128x128x128", "0x128")


@pytest.mark.parametrize("size", [*NO_TEXTS, 128, [0, 0], ["a", 1], [128], {}, [128.0, 128]])
def test_a_block_is_two_whole_numbers(tmp_path, size):
    compressed = _compressed_blocks()
    compressed["config_groups"]["group_0"]["weights"]["block_structure"] = size
    _refused(tmp_path, compressed, "config_groups.group_0.weights.block_structure")
    _refused(tmp_path, _blocks() | {"weight_block_size": size}, "weight_block_size")


def test_a_block_of_llm_compressor_alone_may_be_a_text(tmp_path):
    compressed = _compressed_blocks()
    compressed["config_groups"]["group_0"]["weights"]["block_structure"] = "128x128"
    _is_cut(_served(tmp_path, SMALL, {"quantization_config": compressed}, "8"), "h100-80gb")
    _refused(tmp_path, _blocks() | {"weight_block_size": "128x128"}, "weight_block_size")


@pytest.mark.parametrize(
    ("quantization", "key"),
    [
        ({"quant_method": "modelopt", "quantization": "FP8"}, "quantization"),
        (
            _modelopt("MIXED_PRECISION") | {"quantized_layers": {"model.layers.0.mlp": "FP8"}},
            "quantized_layers.model.layers.0.mlp",
        ),
        (_gptq(128) | {"dynamic": {"+:(": {"bits": 8}}}, "dynamic.+:("),
        (_gptq(128) | {"dynamic": {"+:.*mlp.*": "8"}}, "dynamic.+:.*mlp.*"),
        (_gptq(128) | {"dynamic": {"+:.*mlp.*": {"bits": "8"}}}, "dynamic.+:.*mlp.*.bits"),
        (_gptq(128) | {"group_size": "128"}, "group_size"),
        (_gptq(128) | {"modules_in_block_to_quantize": 5}, "modules_in_block_to_quantize"),
        (_awq(128) | {"bits": "4"}, "bits"),
        (_compressed_blocks("re:("), "ignore.2"),
        (_compressed(8, "int", None, "none"), "config_groups.group_0.input_activations"),
        (_compressed_blocks() | {"config_groups": []}, "config_groups"),
        (_compressed_blocks() | {"config_groups": {"a": "text"}}, "config_groups.a"),
        (_compressed_blocks() | {"config_groups": {"a": {"weights": [1]}}}, "config_groups.a"),
    ],
)
def test_a_value_of_another_form_is_refused_by_its_key(tmp_path, quantization, key):
    _refused(tmp_path, quantization, key)


def _refused(folder, quantization, key):
    command = _served(folder, SMALL, {"quantization_config": quantization}, "1")
    refuses(re.escape(f"quantization_config.{key}"), fit_of, command, "h100-80gb", NEWEST)


def test_mxfp8_of_llm_compressor_has_a_type_of_scales(tmp_path):
    quantization = _compressed(8, "float", 32, MXFP8_INPUTS)
    command = _served(tmp_path, DENSE, {"quantization_config": quantization}, "1")
    refuses("scale_dtype", fit_of, command, "h100-80gb", NEWEST, error=DoesNotStart)


def _served(folder, model, changes, words):
    config = PUBLISHED[model]["config"] | changes
    (folder / "config.json").write_text(json.dumps(config))
    return f"vllm serve {folder} --max-model-len 2048 -tp {words}"


def _is_cut(command, gpu):
    refuses("no whole blocks", fit_of, command, gpu, NEWEST, error=DoesNotStart)
