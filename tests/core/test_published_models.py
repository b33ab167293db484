"""Shapes of public models: each comes from its config, and has the published number of weights."""

import json
from pathlib import Path

import pytest
from refusals import refuses

from testbed.core.hf_config import model_of
from testbed.core.model_files import model_names
from testbed.core.shapes import read_model, shipped
from testbed.core.specs import ModelSpec
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.model_naming import name_of
from testbed.experiments.vllm_server.named import model_named
from testbed.run.build import build
from testbed.vllm.pages import pages_of

PUBLISHED = json.loads(
    (Path(__file__).parents[1] / "inputs" / "published_models.json").read_text(encoding="utf-8")
)
# Shapes that ship, of whose config.json no copy is in PUBLISHED.
WITHOUT_CONFIG = {
    "granite-3.1-2b",
    "granite-3.1-8b",
    "llama-3.2-11b-vision",  # a model_type that is not read
    "ministral-8b",  # its windows are in params.json
}
VISION = {"depth": 2, "hidden_size": 10, "intermediate_size": 30, "patch_size": 4}


def shape_of(tmp_path, config, name=None):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    return model_of(path, name)


def test_every_other_shape_that_ships_has_its_config_here():
    assert set(model_names()) - set(PUBLISHED) == WITHOUT_CONFIG


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_shape_comes_from_its_config_and_has_the_published_sizes(tmp_path, name):
    facts = PUBLISHED[name]
    shape = shape_of(tmp_path, facts["config"], name)
    assert shape == read_model(name)
    if facts["billions"] is not None:  # of the language model, if its publisher states it
        num_params = shape.num_params - (shape.vision_params or 0)
        assert num_params / 1e9 == pytest.approx(facts["billions"], rel=0.005)
    assert shape.kv_bytes_per_token == facts["kv_bytes"]
    assert facts["source"] in shipped(name)["about"]


@pytest.mark.parametrize(
    ("hf_name", "shape"),
    [
        ("mistralai/Mistral-Large-Instruct-2411", "mistral-large"),
        ("mistralai/Mistral-Small-3.2-24B-Instruct-2506", "mistral-small-3.1-24b"),
        ("mistralai/Mistral-7B-Instruct-v0.2", "mistral-7b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
        ("mistralai/Mistral-7B-v0.1", "mistral-7b-v0.1"),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-v3"),
        ("google/gemma-4-31B-it", "gemma-4-31b"),
        ("moonshotai/Kimi-K2-Thinking", "kimi-k2-thinking"),
        ("moonshotai/Kimi-K2.6", "kimi-k2.5"),
        ("Qwen/Qwen3-Coder-Next", "qwen3-next-80b-a3b"),
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16", "nemotron-3-super-120b-a12b"),
        ("zai-org/GLM-4.6", "glm-4.7"),
        ("someone/unheard-of-7b-instruct", "unheard-of-7b"),
    ],
)
def test_a_published_name_finds_its_shape_and_changes_nothing_of_it(hf_name, shape):
    name = named(hf_name)
    assert name.model == shape
    assert name.max_len is name.weight_bits is name.fp8_products is None


@pytest.mark.parametrize(
    ("hf_name", "shape", "bits"),
    [
        ("Qwen/Qwen2.5-72B-Instruct-AWQ", "qwen2.5-72b", 4.15625),
        ("Qwen/Qwen2.5-14B-Instruct-GPTQ-Int4", "qwen2.5-14b", 4.15625),
        ("RedHatAI/Llama-3.3-70B-Instruct-quantized.w4a16", "llama-3.1-70b", 4.125),
        ("neuralmagic/Meta-Llama-3.1-405B-Instruct-FP8-dynamic", "llama-3.1-405b", 8),
        ("RedHatAI/Qwen3-32B-NVFP4", "qwen3-32b", 4.5),
    ],
)
def test_a_quantised_name_says_the_bits_of_a_weight(hf_name, shape, bits):
    name = named(hf_name)
    assert (name.model, name.weight_bits, name.max_len) == (shape, bits, None)
    assert name.fp8_products == ("-FP8" in hf_name or None)


@pytest.mark.parametrize("kind", ["", "-Instruct"])
def test_the_fp8_of_meta_is_no_other_quantisers(kind):
    """It leaves attention in bf16, which its name does not say."""
    refuses("no shape here", model_named, f"meta-llama/Llama-3.1-405B{kind}-FP8")
    assert named(f"RedHatAI/Meta-Llama-3.1-405B{kind}-FP8").weight_bits == 8


@pytest.mark.parametrize(
    "hf_name",
    [
        "nvidia/Llama-3.1-8B-Instruct-FP8",  # its KV cache is of FP8
        "nvidia/Qwen3-32B-NVFP4",
        "unsloth/gpt-oss-20b-BF16",  # that of a shape with MXFP4
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",  # has an output projection
        "mistralai/Mixtral-8x22B-v0.1",  # 32,000 tokens in its vocabulary, and Instruct 32,768
    ],
)
def test_a_name_of_other_weights_or_cache_has_no_shape(hf_name):
    refuses("no shape here", model_named, hf_name)


@pytest.mark.parametrize(
    ("hf_name", "max_len"),
    [
        ("Qwen/Qwen2.5-7B", 131072),
        ("Qwen/Qwen2.5-7B-Instruct", 32768),
        ("Qwen/Qwen3-8B-Base", 32768),
        ("Qwen/Qwen3-8B", 40960),
        ("meta-llama/Llama-4-Scout-17B-16E", 262144),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", 10485760),
    ],
)
def test_a_base_model_has_the_length_of_its_own_file(hf_name, max_len):
    """As litgpt 0.5.13 and copies of these files have them."""
    assert model_named(hf_name).shape.max_len == max_len


def test_weights_that_are_published_in_fp8_are_of_8_bits():
    assert model_named("MiniMaxAI/MiniMax-M2.5").shape.weight_bits == 8 + 32 / 128**2


def test_a_name_with_a_training_date_may_have_a_longer_context():
    dated = named("Qwen/Qwen3-30B-A3B-Instruct-2507")
    assert (dated.model, dated.max_len, dated.weight_bits) == ("qwen3-30b-a3b", 262144, None)
    kimi = named("moonshotai/Kimi-K2-Instruct-0905")
    assert (kimi.model, kimi.max_len, kimi.weight_bits) == ("kimi-k2", 262144, None)
    assert dated.fp8_products is kimi.fp8_products is None
    in_fp8 = named("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8")
    assert (in_fp8.model, in_fp8.max_len) == ("qwen3-235b-a22b", 262144)
    assert in_fp8.fp8_products


def test_the_owner_of_a_name_says_whether_blocks_of_its_fp8_have_scales():
    bits = {
        name: named(name).weight_bits for name in ("Qwen/Qwen3-8B-FP8", "RedHatAI/Qwen3-8B-FP8")
    }
    assert bits == {"Qwen/Qwen3-8B-FP8": 8 + 32 / 128**2, "RedHatAI/Qwen3-8B-FP8": 8}
    assert named("RedHatAI/Qwen3-8B-FP8-block").weight_bits == 8 + 32 / 128**2


def named(hf_name):
    return name_of(hf_name, sorted(PUBLISHED) + KNOWN)


KNOWN = ["qwen3-30b-a3b", "mistral-7b", "mistral-7b-v0.1", "mistral-small-3.1-24b", "deepseek-v3"]


def test_a_quantised_name_has_fewer_bytes_of_the_same_shape():
    plain, quantised = (model_named(f"Qwen/Qwen3-32B{end}").shape for end in ("", "-AWQ"))
    assert quantised.num_params == plain.num_params
    assert quantised.weight_bytes < 0.31 * plain.weight_bytes


def test_weights_of_a_vision_tower_count_and_no_token_reads_them(tmp_path):
    text = PUBLISHED["llama-3.2-1b"]["config"]
    both = {"model_type": "llava", "text_config": text, "vision_config": VISION}
    with_tower, plain = shape_of(tmp_path, both, "a"), shape_of(tmp_path, text, "a")
    tower = 2 * (4 * 10 * 10 + 2 * 10 * 30) + 3 * 4 * 4 * 10
    assert with_tower.vision_params == tower
    assert with_tower.num_params == plain.num_params + tower
    assert with_tower.weight_bytes == plain.weight_bytes + 2 * tower
    assert with_tower.read_bytes(0) == plain.read_bytes(0)


FLAT = {
    "qwen2_vl": {"embed_dim": 10, "mlp_ratio": 3, "hidden_size": 99, "depth": 2},
    "qwen2_5_vl": {"hidden_size": 10, "intermediate_size": 30, "depth": 2},
}


@pytest.mark.parametrize("kind", FLAT)
def test_a_qwen_with_images_may_have_no_text_config(tmp_path, kind):
    text = PUBLISHED["qwen2.5-1.5b"]["config"] | {"model_type": kind, "vision_config": FLAT[kind]}
    shape, plain = shape_of(tmp_path, text, "a"), read_model("qwen2.5-1.5b")
    gates, merger = 3 if kind == "qwen2_5_vl" else 2, 40 * (40 + plain.hidden_size)
    assert shape.vision_params == 2 * (4 * 10 * 10 + gates * 10 * 30) + merger
    assert (shape.kv_bytes_per_token, shape.linear_params) == (
        plain.kv_bytes_per_token,
        plain.linear_params,
    )


def test_what_stands_around_a_text_config_counts_where_it_does_not_say(tmp_path):
    text = dict(PUBLISHED["llama-3.2-1b"]["config"])
    del text["tie_word_embeddings"]
    fp8 = {"quant_method": "fp8"}
    around = {"model_type": "mistral3", "text_config": text | {"model_type": "mistral"}}
    around |= {"tie_word_embeddings": True, "quantization_config": fp8}
    shape = shape_of(tmp_path, around)
    assert (shape.tied_embedding, shape.weight_bits) == (True, 8)


@pytest.mark.parametrize(
    ("quantised", "in_fp8"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, True),
        ({"quant_method": "fp8", "ignored_layers": ["model.layers.0.mlp.down_proj"]}, True),
        ({"weights": {"num_bits": 8, "type": "float"}, "inputs": "float"}, True),
        ({"weights": {"num_bits": 8, "type": "float"}, "inputs": None}, None),  # W8A16
        ({"weights": {"num_bits": 8, "type": "int"}, "inputs": "int"}, None),
        (None, None),
    ],
)
def test_layers_multiply_in_fp8_where_weights_and_inputs_are_fp8(tmp_path, quantised, in_fp8):
    config = dict(PUBLISHED["llama-3.2-1b"]["config"])
    if quantised and "weights" in quantised:
        kind = quantised.pop("inputs")
        inputs = {"num_bits": 8, "type": kind} if kind else None
        group = {**quantised, "input_activations": inputs}
        quantised = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}
    if quantised:
        config["quantization_config"] = quantised
    assert shape_of(tmp_path, config).fp8_products is in_fp8


def compressed(*groups):
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {f"group_{i}": {"weights": weights} for i, weights in enumerate(groups)},
    }


def test_weights_of_compressed_tensors_have_the_bits_of_their_first_group(tmp_path):
    text = PUBLISHED["llama-3.2-1b"]["config"]
    fp8 = shape_of(tmp_path, text | {"quantization_config": compressed({"num_bits": 8})})
    packed = compressed({"num_bits": 4, "group_size": 128})
    assert fp8.weight_bits == 8
    assert shape_of(tmp_path, text | {"quantization_config": packed}).weight_bits == 4.125
    two = text | {"quantization_config": compressed({"num_bits": 8}, {"num_bits": 4})}
    assert shape_of(tmp_path, two).weight_bits == 8  # both are for every linear layer


def test_layers_with_other_heads_have_larger_blocks_of_the_same_page():
    """vLLM 0.19's unify_kv_cache_spec_page_size: 16 tokens of 16 x 256, 32 of 4 x 512."""
    pages = pages_of(read_model("gemma-4-31b"), 1, 16, tokens_under_way=8192)
    assert pages.page_bytes == 10 * 16 * 2 * 2 * 16 * 256
    assert sorted(zip(pages.windows, pages.block_sizes, strict=True), key=str) == [
        (1024, 16)
    ] * 5 + [(None, 32)]
    assert pages.of_sequence(32768) == 1024 + 5 * (-(-9215 // 16) + 1)


@pytest.mark.parametrize("key", ["num_kv_shared_layers", "hidden_size_per_layer_input"])
def test_layers_that_share_their_cache_are_refused(tmp_path, key):
    config = PUBLISHED["gemma-4-31b"]["config"]
    changed = {**config, "text_config": config["text_config"] | {key: 4}}
    refuses(key, shape_of, tmp_path, changed)


@pytest.mark.parametrize(
    ("name", "num_gpus", "token_bytes", "in_windows", "in_full"),
    [
        ("gemma-4-31b", 4, 4096, 16, 32),
        ("gemma-4-31b", 8, 2048, 16, 16),
        ("gemma-4-26b-a4b", 8, 2048, 32, 16),
    ],
)
def test_heads_that_do_not_go_round_the_gpus_are_copied_in_their_layers(
    name, num_gpus, token_bytes, in_windows, in_full
):
    """As vLLM 0.33's own classes start on 8 GPUs, whose layers of full attention have 4 or 2."""
    model = read_model(name)
    pages = pages_of(model, num_gpus, 16)
    sizes = {None: in_full, 1024: in_windows}
    assert pages.page_bytes == model.groups[0].num_layers * 16 * token_bytes
    assert pages.block_sizes == tuple(sizes[window] for window in pages.windows)


def test_a_window_without_other_heads_is_as_the_model():
    model = read_model("gemma-3-27b")
    assert not model.has_uneven_heads
    assert model.window_slot_bytes == model.slot_bytes
    assert isinstance(model, ModelSpec)


def test_costs_of_sparse_attention_say_that_they_are_of_all_tokens():
    words = "model=deepseek-v3.2", "gpu=h200", "server.num_gpus=8", "arrivals.duration_s=1"
    assert "indexer" in build(configured(words)).description["cost"]


def test_experts_alone_are_quantised_if_all_else_is_ignored():
    """As Kimi-K2.5's checkpoint has it: 595 GB, attention and shared experts in 16 bits."""
    shape = read_model("kimi-k2.5")
    assert (shape.weight_bits, shape.experts.bits) == (None, 4.5)
    assert shape.weight_bytes / 1e9 == pytest.approx(595, rel=0.002)


@pytest.mark.parametrize(
    ("changes", "drafts"),
    [
        ({}, True),
        ({"num_nextn_predict_layers": 2}, None),
        ({"mtp_hybrid_override_pattern": "*"}, None),
    ],
)
def test_a_nemotron_drafts_by_a_layer_of_attention_and_one_of_experts(tmp_path, changes, drafts):
    config = PUBLISHED["nemotron-3-super-120b-a12b"]["config"] | changes
    assert shape_of(tmp_path, config).drafts_itself is drafts


def test_experts_of_latent_vectors_have_projections_on_each_gpu():
    shape = read_model("nemotron-3-super-120b-a12b")
    assert shape.expert_params == 2 * 1024 * 2688
    assert shape.latent_params == 40 * 2 * 4096 * 1024
    assert shape.active_params / 1e9 == pytest.approx(12, abs=0.3)
