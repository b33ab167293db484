"""A config.json read as vLLM 0.33.0 and 0.19.0 read it, seen by running their own classes."""

import json
import math
from dataclasses import replace

import pytest
from hf_configs import QWEN3_MOE
from refusals import refuses

from testbed.core.hf_config import model_of
from testbed.core.hf_linears import linears_of
from testbed.experiments.vllm_server.answer import fit_of
from testbed.vllm.releases import release_numbered

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
MISTRAL = {**LLAMA, "model_type": "mistral", "sliding_window": None}
QWEN_WINDOWS = {
    **LLAMA,
    "model_type": "qwen2",
    "use_sliding_window": True,
    "max_window_layers": 0,
    "sliding_window": 4096,
}
COHERE2 = {**LLAMA, "model_type": "cohere2", "tie_word_embeddings": True}
SPARSE = {
    **LLAMA,
    "model_type": "deepseek_v32",
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "index_topk": 2048,
    "index_head_dim": 128,
    "index_n_heads": 64,
    "first_k_dense_replace": 3,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 16,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
}
INSIDE = {  # the text of files around one
    **dict.fromkeys(("gemma3", "qwen3_vl", "qwen2_5_vl", "mistral3", "smolvlm", "internvl"), LLAMA),
    "llama4": LLAMA | {"num_local_experts": 4, "num_experts_per_tok": 1},
    "qwen3_5": LLAMA | {"layer_types": ["linear_attention", "full_attention"] * 16},
}
GEMMA = {**LLAMA, "model_type": "gemma", "tie_word_embeddings": True}
PHI = {**LLAMA, "model_type": "phi", "num_key_value_heads": 32, "intermediate_size": 16384}
ERNIE = {**LLAMA, "model_type": "ernie4_5_moe", "moe_num_experts": 8, "moe_k": 2}
TOWER = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "patch_size": 14}
ALTERNATING = ["full_attention", "sliding_attention"] * 16


def without(config, *keys, **others):
    return {key: value for key, value in config.items() if key not in keys} | others


@pytest.fixture
def shape(tmp_path):
    def read(config):
        (tmp_path / "config.json").write_text(json.dumps(config))
        return model_of(tmp_path / "config.json")

    return read


@pytest.fixture
def fit(tmp_path):
    def ask(config, words="", release="0.33", gpu="h100-80gb"):
        (tmp_path / "config.json").write_text(json.dumps(config))
        return fit_of(f"vllm serve {tmp_path} {words}", gpu, release_numbered(release))

    return ask


@pytest.mark.parametrize(
    ("kind", "heads"), [("mistral", 8), ("mixtral", 8), ("qwen2", 32), ("llama", 32)]
)
def test_absent_heads_of_k_and_v_are_those_of_the_class(shape, kind, heads):
    more = {"num_local_experts": 8, "num_experts_per_tok": 2} if kind == "mixtral" else {}
    assert (
        shape(without(LLAMA, "num_key_value_heads", model_type=kind) | more).num_kv_heads == heads
    )


@pytest.mark.parametrize(
    ("kind", "size"), [("gemma", 256), ("gemma2", 256), ("gemma3_text", 256), ("qwen3", 128)]
)
def test_an_absent_head_size_is_that_of_the_class(shape, kind, size):
    config = without(LLAMA, "tie_word_embeddings", model_type=kind, hidden_size=3072)
    assert shape(config).head_size == size


@pytest.mark.parametrize(
    ("config", "window", "num_layers"),
    [
        (without(MISTRAL, "sliding_window"), 4096, 32),
        (MISTRAL, None, 0),
        (without(LLAMA, model_type="gemma2", tie_word_embeddings=True), 4096, 16),
        (without(LLAMA, model_type="gemma3_text"), 4096, 27),
        (without(LLAMA, model_type="olmo3", sliding_window=1024), 1024, 24),
        (without(COHERE2, sliding_window=1024), 1025, 24),
        (without(QWEN_WINDOWS, "sliding_window"), 4096, 32),
        (without(QWEN_WINDOWS, use_sliding_window=False), None, 0),
        (without(QWEN_WINDOWS, layer_types=ALTERNATING, max_window_layers=32), None, 0),
    ],
)
def test_windows_are_those_of_the_file_or_the_class(shape, config, window, num_layers):
    found = shape(config).window
    assert (found.size, found.num_layers) == (window, num_layers) if window else found is None


def test_windows_in_some_layers_of_a_qwen_are_refused_as_by_vllm(shape):
    refuses("max_window_layers", shape, without(QWEN_WINDOWS, max_window_layers=10))


def test_a_float32_checkpoint_is_served_in_16_bits(fit):
    llama = without(LLAMA, torch_dtype="float32", vocab_size=128256)
    assert fit(llama).kv_tokens == fit(llama, "--dtype bfloat16").kv_tokens == 452_560
    assert round(fit(llama).weights_gib, 2) == 14.96
    assert fit(llama, "--dtype float32").weights_gib == 2 * fit(llama).weights_gib


LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}
LLAMA_3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 2048}
LONGROPE = {"type": "longrope"}
WINDOWED, FULL = "sliding_attention", "full_attention"
PLAIN = {"rope_type": "default"}


@pytest.mark.parametrize(
    ("rope", "release", "length"),
    [
        (LINEAR, "0.19", 32768),
        (LINEAR, "0.33", 32768),
        ({**LINEAR, "rope_type": "dynamic"}, "0.33", 32768),
        ({**LINEAR, "rope_type": "default"}, "0.19", 32768),
        ({"factor": 4.0}, "0.33", 32768),
        (YARN, "0.19", 32768),
        (YARN, "0.33", 8192),
        (LLAMA_3, "0.19", 8192),
        (LLAMA_3, "0.33", 8192),
        (LONGROPE, "0.19", 2048),
        (LONGROPE, "0.33", 2048),
        ({FULL: LINEAR, WINDOWED: PLAIN}, "0.33", 32768),
        ({WINDOWED: PLAIN, FULL: LINEAR}, "0.33", 32768),
        ({FULL: LINEAR, WINDOWED: LLAMA_3}, "0.33", 32768),
        ({FULL: LINEAR, WINDOWED: YARN | {"factor": 2.0}}, "0.33", 32768),
        ({FULL: LINEAR, WINDOWED: YARN | {"factor": 2.0}}, "0.19", 16384),
        ({FULL: {**LINEAR, "factor": 2.0}, WINDOWED: LINEAR}, "0.33", 32768),
        ({FULL: LINEAR, WINDOWED: PLAIN | {"factor": None}}, "0.33", 8192),
        (LINEAR | {"rope_type": "deepseek_llama_scaling"}, "0.33", 8192),
    ],
)
def test_a_rope_decides_the_longest_sequence(fit, rope, release, length):
    more = {"max_position_embeddings": 8192, "rope_scaling": rope}
    if rope is LONGROPE:
        more |= {"model_type": "phi3", "original_max_position_embeddings": 2048}
    assert fit(LLAMA | more, release=release).max_model_len == length


def test_longrope_serves_all_positions_when_asked(fit):
    more = {"model_type": "phi3", "original_max_position_embeddings": 4096}
    assert (
        fit(LLAMA | more | {"rope_scaling": LONGROPE}, "--max-model-len 32768").max_model_len
        == 32768
    )


def test_a_file_without_a_length_has_that_of_its_class(shape):
    assert shape(without(LLAMA, "max_position_embeddings")).max_len == 2048
    assert shape(without(MISTRAL, "max_position_embeddings")).max_len == 4096 * 32


NEMOTRON_H = {
    "model_type": "nemotron_h",
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
    "dtype": "bfloat16",
    "hybrid_override_pattern": "M-M*-M-M*-",
    "mamba_num_heads": 16,
    "mamba_head_dim": 64,
    "n_groups": 2,
    "ssm_state_size": 128,
    "conv_kernel": 4,
    "chunk_size": 128,
}


def test_states_of_an_unsaid_type_are_of_float32_since_release_0_33(fit):
    """Of 4 GiB: 3,971 blocks of 528 tokens and 180.50x, 2 + 1 pages for each group of states."""
    words = f"--kv-cache-memory-bytes {4 << 30}"
    newer, older = fit(NEMOTRON_H, words), fit(NEMOTRON_H, words, "0.19")
    assert (newer.num_blocks, newer.block_size) == (3971, 528)
    assert newer.max_concurrency == pytest.approx(180.50)
    assert newer.kv_tokens == 1_478_656
    assert older.block_size == 272


def test_layers_of_a_nemotron_have_the_names_of_each_transformers(shape):
    """`M*-E` of a file that Transformers 4 has written, and of one of its version 5."""
    of = without(NEMOTRON_H, "hybrid_override_pattern")
    older = ["mamba", "attention", "mlp", "mamba"]
    newer = ["linear_attention", "full_attention", "mlp", "linear_attention"]
    expected = shape(of | {"hybrid_override_pattern": "M*-M"})
    assert (expected.states.num_layers, expected.num_layers) == (2, 3)
    for key, names in {"layers_block_type": older, "layer_types": newer}.items():
        assert shape(of | {key: names}) == expected


def test_a_nemotrons_drafting_layer_has_the_names_of_each_transformers(shape):
    named = NEMOTRON_H | {"num_nextn_predict_layers": 1}
    for blocks in (["attention", "moe"], ["full_attention", "moe"]):
        assert shape(named | {"mtp_layers_block_type": blocks}).drafts_itself
    for blocks in (["moe"], 3):
        assert not shape(named | {"mtp_layers_block_type": blocks}).drafts_itself


@pytest.mark.parametrize(("gpu", "size"), [("a100-80gb", 784), ("h100-80gb", 832), ("h200", 832)])
def test_a_hybrids_block_follows_the_gpu_since_release_0_33(gpu, size):
    command = "vllm serve Qwen/Qwen3.5-27B --max-model-len 32768 --max-num-seqs 64"
    assert fit_of(command, gpu, release_numbered("0.33")).block_size == size
    assert fit_of(command, gpu, release_numbered("0.19")).block_size == 784


@pytest.mark.parametrize(
    ("gpu", "words", "size"),
    [
        ("h200", "", 16),
        ("h200", "--kv-cache-dtype fp8", 64),
        ("a100-80gb", "", 16),
        ("b200", "", 32),
    ],
)
def test_a_block_of_latents_follows_the_attention_backend(gpu, words, size):
    command = f"vllm serve deepseek-ai/DeepSeek-V2-Lite --max-num-seqs 64 {words}"
    assert fit_of(command, gpu, release_numbered("0.33")).block_size == size


def test_chunked_layers_have_groups_of_their_own(fit):
    """Of 4 GiB on an H100: 262,144 blocks, and 3 groups of chunks beside one of full attention."""
    llama_4 = {
        "model_type": "llama4_text",
        "hidden_size": 1024,
        "intermediate_size": 2048,
        "intermediate_size_mlp": 2048,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": 32000,
        "max_position_embeddings": 8192,
        "num_local_experts": 8,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 1,
        "attention_chunk_size": 1024,
        "dtype": "bfloat16",
    }
    words = f"--kv-cache-memory-bytes {4 << 30}"
    small, large = fit(llama_4, words, gpu="a100-80gb"), fit(llama_4, words)
    assert (small.num_blocks, small.kv_tokens) == (262_144, 1_458_888)
    assert small.max_concurrency == pytest.approx(178.09, abs=0.005)
    assert (large.kv_tokens, large.max_concurrency) == (1_048_576, 128)


def test_dense_layers_may_stand_between_those_of_experts(shape, fit):
    """The bytes of vLLM 0.33's own class, and the layers where it makes experts."""
    config = QWEN3_MOE | {"num_hidden_layers": 8, "decoder_sparse_step": 3}
    model = shape(config)
    assert model.weight_bytes == pytest.approx(4_416_675_840, rel=1e-4)
    routed = [each.name for each in linears_of(model, "qwen3_moe") if each.is_routed]
    assert routed == [f"model.layers.{number}.mlp.experts" for number in (2, 5)]
    refuses("dense layers between", fit, config, "--pipeline-parallel-size 2")


def test_a_checkpoint_may_say_the_bytes_of_its_cache(shape):
    group = {"weights": {"num_bits": 8, "type": "float"}}
    scheme = {"num_bits": 8, "type": "float"}
    said = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}
    assert shape(LLAMA | {"quantization_config": said}).kv_dtype_bytes is None
    said["kv_cache_scheme"] = scheme
    assert shape(LLAMA | {"quantization_config": said}).kv_dtype_bytes == 1
    fp8 = {"quant_method": "fp8", "kv_cache_scheme": "static"}
    assert shape(LLAMA | {"quantization_config": fp8}).kv_dtype_bytes is None


def test_the_logged_size_is_the_concurrency_times_the_length_since_release_0_33(fit):
    windows = without(MISTRAL, "sliding_window")
    assert fit(windows).kv_tokens == 755_991
    assert fit(windows, release="0.19").kv_tokens % 16 == 0


def test_weights_are_turned_into_fp8_on_request(fit):
    assert fit(LLAMA, "--quantization fp8").weights_gib < 0.55 * fit(LLAMA).weights_gib
    awq = {"quant_method": "awq", "bits": 4, "group_size": 128}
    refuses("--quantization", fit, LLAMA | {"quantization_config": awq}, "--quantization fp8")


@pytest.mark.parametrize("key", ["max_position_embeddings", "vocab_size", "tie_word_embeddings"])
def test_a_null_that_the_class_does_not_take_is_refused(shape, key):
    refuses(key, shape, LLAMA | {key: None})


def test_an_fp8_cache_of_latents_has_no_backend_on_an_a100_since_release_0_33():
    command = "vllm serve deepseek-ai/DeepSeek-V2-Lite --max-num-seqs 64 --kv-cache-dtype fp8"
    assert fit_of(command, "a100-80gb", release_numbered("0.19")).block_size == 16
    refuses("FP8 cache", fit_of, command, "a100-80gb", release_numbered("0.33"))


def test_sparse_attention_has_no_backend_on_an_a100():
    command = "vllm serve deepseek-ai/DeepSeek-V3.2 -tp 16 --max-num-seqs 64"
    refuses("sparse attention", fit_of, command, "a100-80gb", release_numbered("0.33"))


def test_more_sequences_than_a_pool_has_states_do_not_start_since_release_0_33():
    command = "vllm serve Qwen/Qwen3.5-27B --max-model-len 32768"
    newer, older = release_numbered("0.33"), release_numbered("0.19")
    message = refuses("--max-num-seqs 384 starts", fit_of, command, "h100-80gb", newer)
    assert "1,024" in message
    assert fit_of(f"{command} --max-num-seqs 384", "h100-80gb", newer).num_blocks >= 384
    refuses("--max-num-seqs 384", fit_of, f"{command} --max-num-seqs 385", "h100-80gb", newer)
    eager = fit_of(f"{command} --enforce-eager", "h100-80gb", newer)
    assert (eager.cuda_graphs_gib, eager.num_blocks) == (0, 353)
    assert fit_of(command, "h100-80gb", older).num_blocks < 1024


@pytest.mark.parametrize("kind", ["gemma2", "gemma3_text", "glm4"])
def test_a_model_that_needs_range_is_not_served_in_float16(fit, kind):
    config = without(LLAMA, model_type=kind, tie_word_embeddings=kind != "glm4", head_dim=128)
    assert fit(config, "--dtype bfloat16").kv_tokens == fit(config).kv_tokens
    refuses("--dtype", fit, config, "--dtype float16")


@pytest.mark.parametrize("kind", ["gemma2", "gemma3_text", "glm4"])
def test_a_model_that_needs_range_is_served_in_float32_where_bfloat16_is_not(fit, kind):
    config = without(LLAMA, model_type=kind, tie_word_embeddings=kind != "glm4", head_dim=128)
    config["num_hidden_layers"] = 4
    newer, older = (fit(config, "--max-model-len 4096", gpu=gpu) for gpu in ("l4", "t4"))
    assert older.weights_gib == pytest.approx(2 * newer.weights_gib, rel=0.01)
    same = "--max-model-len 4096 --kv-cache-memory-bytes 4294967296"
    newer, older = (fit(config, same, gpu=gpu) for gpu in ("l4", "t4"))
    assert older.num_blocks == newer.num_blocks // 2


@pytest.mark.parametrize("kind", ["gemma", "gemma2", "cohere2"])
def test_an_output_projection_that_the_class_has_not_is_refused(shape, kind):
    config = without(LLAMA, model_type=kind, head_dim=128)
    refuses("tie_word_embeddings", shape, config)
    assert shape(config | {"tie_word_embeddings": True}).tied_embedding


def test_a_rope_that_the_class_does_not_take_is_refused(shape):
    linear = {"rope_type": "linear", "factor": 4.0}
    refuses("rope_scaling", shape, without(LLAMA, model_type="phi3", rope_scaling=linear))
    experts = {"num_local_experts": 8, "num_experts_per_tok": 2}
    gpt = without(LLAMA, model_type="gpt_oss", rope_scaling=linear, **experts)
    refuses("original_max_position_embeddings", shape, gpt)


@pytest.mark.parametrize("key", ["factor", "original_max_position_embeddings"])
@pytest.mark.parametrize("value", ["8", math.inf])
def test_a_rope_whose_number_is_text_or_infinite_is_refused(shape, key, value):
    refuses(f"{key}={value!r}", shape, LLAMA | {"rope_scaling": YARN | {key: value}})


@pytest.mark.parametrize("words", ["", "--kv-cache-dtype fp8", "--kv-cache-dtype bfloat16"])
def test_a_sparse_latent_has_scales_on_small_blackwells_whatever_its_type(fit, words):
    answer = fit(SPARSE, f"{words} --kv-cache-memory-bytes 4294967296", gpu="rtx-pro-6000")
    assert (answer.block_size, answer.num_blocks) == (64, (4 << 30) // (64 * 32 * (656 + 132)))


@pytest.mark.parametrize("release", ["0.19", "0.20"])
def test_sparse_attention_had_no_backend_on_small_blackwells(fit, release):
    refuses("sparse attention", fit, SPARSE, gpu="rtx-pro-6000", release=release)


@pytest.mark.parametrize("gpu", ["t4", "v100-32gb"])
def test_no_fp8_cache_below_ampere_since_release_0_33(fit, gpu):
    small = LLAMA | {"num_hidden_layers": 4}
    refuses("FP8 cache", fit, small, "--kv-cache-dtype fp8", gpu=gpu)
    assert fit(small, "--kv-cache-dtype fp8", gpu=gpu, release="0.19").num_blocks
    assert fit(small, gpu=gpu).num_blocks


@pytest.mark.parametrize(
    ("gpu", "slot_bytes"), [("h100-80gb", 656 + 132), ("b200", 576 + 132)], ids=["H100", "B200"]
)
def test_a_sparse_latent_in_fp8_has_scales_on_hopper(fit, gpu, slot_bytes):
    """fp8_ds_mla of FlashMLA: 512 values, 16 bytes of scales and 64 positions of 16 bits."""
    answer = fit(SPARSE, "--kv-cache-dtype fp8 --kv-cache-memory-bytes 4294967296", gpu=gpu)
    assert answer.block_size == 64
    assert answer.num_blocks == (4 << 30) // (64 * 32 * slot_bytes)


def test_sinks_have_no_fp8_cache_on_ampere(fit):
    experts = {"num_local_experts": 2, "num_experts_per_tok": 2}
    gpt = without(LLAMA, model_type="gpt_oss", **experts)
    refuses("FP8", fit, gpt, "--kv-cache-dtype fp8", gpu="a100-80gb")
    assert fit(gpt, "--kv-cache-dtype fp8").num_blocks
    assert fit(gpt, "--kv-cache-dtype fp8", release="0.19", gpu="a100-80gb").num_blocks


@pytest.mark.parametrize(
    ("words", "release", "gpu", "size"),
    [
        ("", "0.33", "b200", 64),
        ("--language-model-only", "0.33", "b200", 16),
        ("", "0.33", "h100-80gb", 16),
        ("", "0.19", "b200", 16),
    ],
)
def test_masks_of_images_take_larger_blocks_on_blackwell(fit, words, release, gpu, size):
    """TritonFlashInfer, the composite of release 0.33, has blocks of 64."""
    text = without(LLAMA, model_type="gemma3_text", tie_word_embeddings=True, head_dim=256)
    config = {"model_type": "gemma3", "text_config": text, "vision_config": TOWER}
    config["architectures"] = ["Gemma3ForConditionalGeneration"]
    assert fit(config, words, release=release, gpu=gpu).block_size == size


def test_parts_of_unknown_weights_are_refused(fit):
    """Granite-speech's encoder has 0.6 GiB, of which an answer had none."""
    around = {"model_type": "qwen3_vl", "text_config": INSIDE["qwen3_vl"]}
    around["architectures"] = ["Qwen3VLForConditionalGeneration"]
    assert fit(around | {"vision_config": TOWER, "audio_config": None}).num_blocks
    assert fit(around | {"vision_config": {}}, "--language-model-only").num_blocks
    refuses("vision_config", fit, around | {"vision_config": {}})
    for key in ("audio_config", "encoder_config"):
        refuses(key, fit, around | {key: {"hidden_size": 1024}}, "--language-model-only")


def test_a_phi_has_the_columns_that_each_release_has(shape):
    assert shape(PHI).ffn_size == shape(PHI | {"n_inner": 16384}).ffn_size == 16384


def test_another_name_of_a_key_counts_first_since_transformers_5(tmp_path, shape):
    """Files of Transformers 5 have num_local_experts alone for a Qwen3 with experts."""
    config = without(QWEN3_MOE, num_local_experts=60, num_experts=8)
    assert shape(config).experts.count == 60
    refuses("num_local_experts", model_of, tmp_path / "config.json", transformers=4)
    narrow = SPARSE | {"model_type": "glm4_moe_lite", "head_dim": 32, "index_topk": None}
    assert shape(narrow).latent.rope_size == 32


@pytest.mark.parametrize("name", ["deepseek_sparse_attention", "indexed_attention"])
def test_layers_whose_tokens_an_indexer_chooses_are_of_full_attention(shape, name):
    assert shape(SPARSE | {"layer_types": [name] * 32}) == shape(SPARSE)


@pytest.mark.parametrize(
    ("kind", "key"), [("glm4_moe_lite", "first_k_dense_replace"), ("minimax_m2", "rotary_dim")]
)
def test_a_key_that_the_class_of_vllm_needs_is_missed(shape, kind, key):
    refuses("it needs the value", shape, without(SPARSE, key, model_type=kind, index_topk=None))


def test_layers_that_share_an_indexer_are_refused(shape):
    """GLM-5.2, whose keys of the indexer are in some layers only."""
    refuses("indexer_types", shape, SPARSE | {"indexer_types": ["full", "shared"]})


def test_windows_that_the_class_needs_are_not_switched_off(fit):
    config = without(COHERE2, sliding_window=4096, sliding_window_pattern=4)
    assert fit(config).kv_tokens > 0
    refuses("does not start", fit, config, "--disable-sliding-window")


@pytest.mark.parametrize(
    ("kind", "count", "drafts"),
    [
        ("glm4_moe_lite", None, False),
        ("glm_moe_dsa", 0, False),
        ("glm_moe_dsa", 1, True),
        ("deepseek_v3", None, True),
        ("deepseek_v3", 0, False),
    ],
)
def test_layers_that_draft_are_those_that_the_file_or_its_class_counts(shape, kind, count, drafts):
    config = without(SPARSE, model_type=kind, num_nextn_predict_layers=count)
    if count is None:
        del config["num_nextn_predict_layers"]
    assert bool(shape(config).drafts_itself) == drafts


@pytest.mark.parametrize("key", ["num_heads", "num_attention_heads", "vt_num_attention_heads"])
def test_heads_of_a_vision_tower_are_divided_but_where_it_is_whole(shape, key):
    text = without(LLAMA, model_type="qwen3")
    config = {"model_type": "qwen3_vl", "text_config": text, "vision_config": {key: 12}}
    assert shape(config).vision_heads == 12
    assert shape(LLAMA).vision_heads is None
    own = {"tie_word_embeddings": True, "hidden_size_per_layer_input": 0}
    text = without(LLAMA, model_type="gemma4_text", **own)
    config = {"model_type": "gemma4", "text_config": text, "vision_config": {key: 12}}
    assert shape(config).vision_heads is None


TIES = {  # of the file around a text and of the text, None: not said; as since Transformers 5
    "gemma3": {
        (None, False): True,
        (True, False): True,
        (False, True): False,
        (False, None): False,
    },
    "qwen3_vl": {(None, True): False, (True, False): True, (False, True): False},
    "llama4": {(None, True): False, (True, False): True},
    "qwen2_5_vl": {
        (None, True): True,
        (True, False): True,
        (False, True): True,
        (None, None): False,
    },
    "qwen3_5": {(True, None): False, (True, False): False, (False, True): True, (None, True): True},
    "smolvlm": {(True, None): False, (True, False): False, (False, True): True},
    "internvl": {(None, None): True, (None, False): True, (False, True): False},
    "mistral3": {(None, True): True, (True, False): True, (False, True): False},
}


@pytest.mark.parametrize("kind", TIES)
def test_a_file_around_a_text_may_decide_that_its_embedding_is_tied(tmp_path, shape, kind):
    for (outer, inner), tied in TIES[kind].items():
        named = {"model_type": "llama"} if kind in ("smolvlm", "internvl") else {}
        text = without(INSIDE[kind], "model_type", "tie_word_embeddings") | named
        text |= {} if inner is None else {"tie_word_embeddings": inner}
        config = {"model_type": kind, "text_config": text}
        config |= {} if outer is None else {"tie_word_embeddings": outer}
        assert shape(config).tied_embedding == tied
        older = model_of(tmp_path / "config.json", transformers=4)
        assert inner is None or older.tied_embedding == inner


@pytest.mark.parametrize("kind", ["gpt_oss", "qwen3_next", "deepseek_v3"])
def test_some_classes_never_tie_the_output_projection(shape, kind):
    config = {"deepseek_v3": without(SPARSE, index_topk=None)}.get(kind, {}) | {"model_type": kind}
    tied, untied = (shape(config | {"tie_word_embeddings": value}) for value in (True, False))
    assert tied == untied


def test_a_file_around_a_text_needs_its_class(fit):
    around = {"model_type": "qwen3_vl", "text_config": INSIDE["qwen3_vl"]}
    assert fit(around | {"architectures": ["Qwen3VLForConditionalGeneration"]}).num_blocks
    refuses("architectures", fit, around)


@pytest.mark.parametrize(
    ("more", "max_len"),
    [
        ({"model_max_length": 131072}, 131072),
        ({"model_max_length": 4096}, 4096),
        ({"max_seq_length": 4096}, 4096),
        ({"seq_len": 4096}, 4096),
        ({"max_target_positions": 65536}, 32768),
    ],
)
def test_a_length_of_the_tokenizer_decides_and_of_others_the_smallest(shape, more, max_len):
    assert shape(LLAMA | more).max_len == max_len


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (LLAMA | {"compression_config": {"quant_method": "compressed-tensors"}}, "compression"),
        (LLAMA | {"is_encoder_decoder": True}, "is_encoder_decoder"),
        (LLAMA | {"per_layer_config": {"0": {"num_key_value_heads": 4}}}, "per_layer_config"),
        (LLAMA | {"is_causal": False}, "is_causal"),
        (LLAMA | {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        (SPARSE | {"index_topk_freq": 2}, "index_topk_freq"),
        (SPARSE | {"index_topk_pattern": "FS"}, "index_topk_pattern"),
        (SPARSE | {"indexer_types": 2}, "indexer_types"),
        (SPARSE | {"index_topk": 0}, "index_topk"),
        (LLAMA | {"rswa_window": 512}, "rswa_window"),
        (LLAMA | {"model_type": "phi"}, "num_key_value_heads"),
        (PHI | {"intermediate_size": 14336}, "intermediate_size"),
        (PHI | {"n_inner": 64}, "intermediate_size"),
        (LLAMA | {"model_type": "phi3", "sliding_window": [512]}, "sliding_window"),
        (ERNIE | {"moe_layer_end_index": 30}, "moe_layer_end_index"),
        (ERNIE | {"use_moe": False}, "use_moe"),
        (NEMOTRON_H | {"layers_block_type": ["mamba"]}, "hybrid_override_pattern"),
        (SPARSE | {"layer_types": ALTERNATING, "sliding_window": 512}, "layer_types"),
        (GEMMA | {"layer_types": [["full_attention"]] * 32}, "layer_types"),
        (GEMMA | {"layer_types": ALTERNATING, "sliding_window": 512}, "layer_types"),
        (LLAMA | {"model_type": "qwen2", "head_dim": 96}, "head_dim"),
    ],
)
def test_a_key_that_changes_what_is_cached_is_refused(shape, config, key):
    refuses(key, shape, config)


@pytest.mark.parametrize(
    "name",
    ["LlamaForSequenceClassification", "LlamaModel", "DeciLMForCausalLM", "LlamaForCausalLMEagle3"],
)
def test_a_class_that_does_not_generate_text_of_its_type_is_refused(fit, name):
    """vLLM serves the first three as a pooling model, without asynchronous scheduling, or not."""
    named = fit(LLAMA | {"architectures": ["LlamaForCausalLM"]})
    assert named == replace(fit(LLAMA), assumptions=())
    refuses("architectures", fit, LLAMA | {"architectures": [name]})


def test_layers_may_each_be_listed_with_an_indexer_of_their_own(shape):
    listed = SPARSE | {"indexer_types": ["full"] * 32}
    assert shape(listed) == shape(SPARSE)
    refuses("indexer", shape, SPARSE | {"indexer_types": ["full", "shared"] * 16})


def test_types_in_a_file_beside_are_read(shape, tmp_path):
    """vLLM reads weights and a KV cache of FP8 there: nvidia/Llama-3.1-70B-Instruct-FP8."""
    values = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    beside = tmp_path / "hf_quant_config.json"
    beside.write_text(json.dumps({"quantization": values}))
    refuses("producer", shape, LLAMA)  # vLLM 0.33 starts it as if it were not there
    beside.write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": values}))
    read = shape(LLAMA)
    assert (read.weight_bits, read.kv_dtype_bytes, read.fp8_products) == (8, 1, True)
    unnamed = {"quant_algo": "FP8", "kv_cache_scheme": "FP8", "ignore": ["lm_head"]}
    refuses("quant_method", shape, LLAMA | {"quantization_config": unnamed})


def test_only_masks_that_a_gemma_4_says_take_larger_blocks(fit):
    own = {"tie_word_embeddings": True, "hidden_size_per_layer_input": 0, "head_dim": 128}
    text = without(LLAMA, model_type="gemma4_text", **own)
    says = text | {"use_bidirectional_attention": "vision"}
    assert fit(says, gpu="b200").block_size == 64
    assert fit(text, gpu="b200").block_size == 16


def test_a_tower_has_the_type_of_each_transformers(shape):
    """The 3,081,981,952 weights of matrices that vLLM 0.33 builds for the class's own values."""
    sizes = {"depth": 32, "hidden_size": 3584, "intermediate_size": 3420, "out_hidden_size": 3584}
    tower = sizes | {"patch_size": 14, "temporal_patch_size": 2, "num_heads": 16}
    for kind in ("qwen2_5_vl", "qwen2_5_vl_vision"):
        around = {"model_type": "qwen2_5_vl", "text_config": without(LLAMA, "model_type")}
        config = around | {"vision_config": tower | {"model_type": kind}}
        assert shape(config).vision_params == 3_081_981_952


def test_patches_with_two_sides_count(shape):
    """InternVL's."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1}
    patches = [sizes | {"patch_size": size} for size in (14, [14, 14])]
    text = without(LLAMA, model_type="qwen2")
    files = [{"model_type": "internvl", "text_config": text, "vision_config": p} for p in patches]
    plain, sides = (shape(file).vision_params for file in files)
    assert plain == sides


def test_a_window_is_of_all_layers_where_nothing_lists_them(shape):
    """Of any type: vLLM's layers take it from the configuration of the cache."""
    for config in (LLAMA, GEMMA):
        window = shape(config | {"sliding_window": 512}).window
        assert (window.size, window.num_layers) == (512, 32)
    listed = {"layer_types": ["full_attention"] * 32}
    assert shape(LLAMA | listed).window is None
    refuses("layer_types", shape, LLAMA | listed | {"sliding_window": 512})
