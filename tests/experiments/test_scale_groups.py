"""Shares that cut a group of a scale: servers that vLLM 0.33's own classes, on torch's meta device,
started or refused on an H100.
"""

import json
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


NVFP4 = _compressed(4, "float", 16, {"num_bits": 4, "type": "float", "group_size": 16})
MXFP8 = _compressed(8, "float", 32, {"num_bits": 8, "type": "float", "group_size": 32})


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
    ],
)
def test_shares_are_whole_groups(tmp_path, model, changes, quantization, words, starts):
    config = PUBLISHED[model]["config"] | changes | {"quantization_config": quantization}
    (tmp_path / "config.json").write_text(json.dumps(config))
    command = f"vllm serve {tmp_path} --max-model-len 2048 -tp {words}"
    newest = release_numbered("0.33")
    if starts:
        assert fit_of(command, "h100-80gb", newest).weights_gib > 0
    else:
        refuses("no whole blocks", fit_of, command, "h100-80gb", newest, error=DoesNotStart)
