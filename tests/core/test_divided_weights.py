"""Weights on one GPU in tensor parallelism, as vLLM 0.33's own classes have them on torch's meta
device.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from testbed.core.divided_weights import bytes_on_gpu, columns_problem
from testbed.core.errors import InputError
from testbed.core.hf_config import model_of
from testbed.core.shapes import read_model
from testbed.core.specs import GIB
from testbed.experiments.real.lockstep import model_configs
from testbed.experiments.vllm_server.answer import fit_of
from testbed.experiments.vllm_server.named import gpu_named
from testbed.vllm.limits import Limits
from testbed.vllm.memory import memory_of
from testbed.vllm.stages import whole

PUBLISHED = json.loads(
    (Path(__file__).parents[1] / "inputs" / "published_models.json").read_text(encoding="utf-8")
)
FAMILIES = json.loads(model_configs.FAMILIES.read_text(encoding="utf-8"))
NUM_LAYERS = 8  # the first ones of a published model
ON_GPU = {  # bytes by tensor parallelism, and how near the shape comes
    "qwen2.5-3b": ({1: 1855565824, 2: 927817728, 4: 468140032, 8: 238301184}, 0.0005),
    "qwen3-30b-a3b": ({1: 11214594048, 2: 5609431040, 4: 2806849536, 8: 1409753088}, 0.0005),
    "qwen3-next-80b-a3b": ({1: 27595350656, 2: 13806116928, 4: 6913597216, 8: 3467337360}, 0.0005),
    "deepseek-v3": ({1: 63017394944, 2: 31578583808, 4: 15859178240, 8: 7999475456}, 0.0005),
    "deepseek-v2-lite": ({1: 9188749312, 2: 4604768256, 4: 2312777728, 8: 1166782464}, 0.0005),
    "glm-4.7-flash": ({1: 10334332672, 2: 5191067392, 4: 2619434752}, 0.001),
    "deepseek-v3.2": ({1: 63140105984, 2: 31701294848, 4: 15981889280, 8: 8122186496}, 0.002),
    # without the projector of images and positions of its tower
    "kimi-k2.5": ({1: 75294750688, 2: 37847766384, 4: 19124274232, 8: 9762528156}, 0.013),
    "gemma-4-31b": ({1: 11897654368, 2: 6524750944, 4: 3838299232}, 0.018),
}


@pytest.mark.parametrize("name", ON_GPU)
def test_a_gpu_has_its_share_and_what_is_copied(tmp_path, name):
    config = json.loads(json.dumps(PUBLISHED[name]["config"]))
    text = config.get("text_config", config)
    text["num_hidden_layers"] = NUM_LAYERS
    if "layer_types" in text:
        text["layer_types"] = text["layer_types"][:NUM_LAYERS]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    model, (measured, error) = model_of(path), ON_GPU[name]
    for num_gpus, num_bytes in measured.items():
        found = bytes_on_gpu(model, model.weight_bytes, num_gpus)
        assert found == pytest.approx(num_bytes, rel=error)


@pytest.mark.parametrize(
    ("family", "measured"),
    [
        ("arcee", 55871488),
        ("glm", 70559744),
        ("hunyuan-dense", 70555648),
        ("olmo2", 70572032),
        ("starcoder2", 45862912),
    ],
)
def test_classes_of_transformers_copy_heads_too(tmp_path, family, measured):
    """vLLM makes one layer of their projections, with the Transformers that it requires."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(FAMILIES[family]))
    model = model_of(path)
    assert model.num_kv_heads == 2
    assert bytes_on_gpu(model, model.weight_bytes, 4) == pytest.approx(measured, rel=0.003)


@pytest.mark.parametrize(
    ("name", "changes", "shares", "problem"),
    [
        ("phi-4", {}, (5, 5), "padded vocabulary"),
        ("phi-4", {"vocab_size": 102370}, (10, 10), ""),  # 102,400 with its padding
        ("llama-13b", {}, (5, 5), "feed-forward"),
        ("llama-13b", {}, (8, 8), ""),
        ("qwen3-30b-a3b", {"ffn_size": 1}, (8, 8), ""),  # all layers have experts
        ("qwen3-30b-a3b", {}, (8, 32), ""),
        ("qwen3-30b-a3b", {}, (8, 512), "columns of an expert"),
        ("qwen3-30b-a3b", {}, (8, 1), ""),
        ("qwen1.5-moe-a2.7b", {}, (16, 16), ""),
    ],
)
def test_gpus_divide_vocabulary_and_networks_evenly(name, changes, shares, problem):
    found = columns_problem(replace(read_model(name), **changes), *shares)
    assert problem in found if problem else not found


@pytest.mark.parametrize(("num_gpus", "num_engines"), [(8, 1), (2, 4), (1, 8)])
def test_the_first_gpu_has_one_expert_more_if_they_do_not_divide(num_gpus, num_engines):
    """Of the 60 experts of a layer eight GPUs have 8 or 7 (vLLM's determine_expert_map)."""
    model, limits = read_model("qwen1.5-moe-a2.7b"), Limits(8, 2048, num_gpus, True, 1, num_engines)
    more = replace(model, experts=replace(model.experts, count=64))
    found, of_64 = (
        memory_of(whole(each), gpu_named("h100-80gb"), limits, 0.9).weights * GIB
        for each in (model, more)
    )
    assert of_64 - found == pytest.approx(24 * 2048 * 2 * (64 - 60))  # of the routers alone


@pytest.mark.parametrize(
    ("name", "is_copied"),
    [("deepseek-v3", True), ("llama-4-scout-17b-16e", True), ("glm-4.7-flash", False)],
)
def test_engines_and_gpus_that_divide_experts_copy_the_shared_columns(name, is_copied):
    """As vLLM 0.33's own classes with --data-parallel-size 4 -tp 2 --enable-expert-parallel."""
    model = read_model(name)
    none = replace(model, copies_shared=None)
    limits = Limits(8, 2048, 2, True, 1, 4)
    found, divided = (
        memory_of(whole(each), gpu_named("b200"), limits, 0.9).weights * GIB
        for each in (model, none)
    )
    columns = model.num_expert_layers * model.experts.shared_size
    matrices = 3 * model.hidden_size * columns * (model.weight_bits or 16) / 8
    assert found - divided == pytest.approx(is_copied * matrices / 2)


def test_a_command_may_have_an_encoder_of_images_whole_on_every_gpu():
    """--mm-encoder-tp-mode data: images are divided, not weights, but for Gemma-3's class."""

    def encoder(name, mode):
        words = f"vllm serve {name} --max-model-len 4096 -tp 4 --mm-encoder-tp-mode {mode}"
        return fit_of(words, "h100-80gb").encoder_gib

    qwen, gemma = "Qwen/Qwen3-VL-8B-Instruct", "google/gemma-3-27b-it"
    assert encoder(qwen, "data") == pytest.approx(4 * encoder(qwen, "weights"))
    assert encoder(gemma, "data") == encoder(gemma, "weights")
    with pytest.raises(InputError, match="mm-encoder-tp-mode"):
        encoder(qwen, "tokens")
