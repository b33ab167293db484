"""import-model: configs of Hugging Face against the shapes that ship; import-lengths: pickles of artifacts."""

import hashlib
import json
import os
import pickle
from dataclasses import asdict

import hf_configs
import pytest
import yaml
from hf_configs import GEMMA_2, LLAMA, MISTRAL, QWEN3_MOE
from refusals import refuses

from testbed.core.hf_config import model_of
from testbed.core.specs import ModelSpec
from testbed.experiments.commands.cli import call
from testbed.experiments.importers.known_shapes import model_named
from testbed.traces.csv_lengths import CsvLengths

OPT = {
    "model_type": "opt", "_name_or_path": "facebook/opt-13b", "hidden_size": 5120, "num_hidden_layers": 40,
    "num_attention_heads": 40, "ffn_dim": 20480, "vocab_size": 50272, "max_position_embeddings": 2048,
    "word_embed_proj_dim": 5120, "torch_dtype": "float16",
}  # fmt: skip


CHUNKED = LLAMA | {"sliding_window": 4096, "attention_chunk_size": 8192}


def config(tmp_path, values, name="config.json"):
    path = tmp_path / name
    path.write_text(json.dumps(values))
    return path


def test_imported_models_equal_the_shipped_ones(tmp_path):
    assert model_of(config(tmp_path, OPT)) == model_named("opt-13b")
    assert model_of(config(tmp_path, LLAMA), "llama-3-8b") == model_named("llama-3-8b")


# Config, billions of weights as its authors give them, bytes a token, layers and bytes of each group's cache.
SHIPPED = {
    "llama-3.1-8b": (hf_configs.LLAMA_31, 8.03, 131_072, ["full"]),
    "llama-3.1-70b": (hf_configs.LLAMA_70B, 70.6, 327_680, ["full"]),
    "mistral-7b": (MISTRAL | {"sliding_window": None}, 7.24, 131_072, ["full"]),
    "mistral-7b-v0.1": (MISTRAL | {"sliding_window": 4096}, 7.24, 131_072, ["window"]),
    "qwen2.5-7b": (hf_configs.QWEN25, 7.62, 57_344, ["full"]),
    "qwen3-8b": (hf_configs.QWEN3, 8.2, 147_456, ["full"]),
    "qwen3-30b-a3b": (QWEN3_MOE, 30.5, 98_304, ["full"]),
    "qwen3-next-80b-a3b": (hf_configs.QWEN3_NEXT, 80, 24_576, ["full", "state"]),
    "deepseek-v2": (hf_configs.DEEPSEEK_V2, 236, 69_120, ["latent"]),
    "deepseek-v3": (hf_configs.DEEPSEEK_V3, 671, 70_272, ["latent"]),
    "gpt-oss-120b": (hf_configs.GPT_OSS, 116.8, 73_728, ["full", "window"]),
    "gpt-oss-20b": (hf_configs.GPT_OSS_20B, 20.9, 49_152, ["full", "window"]),
    "gemma-2-27b": (GEMMA_2, 27.2, 376_832, ["full", "window"]),
    "gemma-3-27b": (hf_configs.GEMMA_3, 27, 507_904, ["full", "window"]),
    "mixtral-8x7b": (hf_configs.MIXTRAL, 46.7, 131_072, ["full"]),
    "nemotron-h-8b": (hf_configs.NEMOTRON_H, 8.1, 16_384, ["full", "state"]),
}


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_shapes_come_from_their_config_and_have_the_published_size(tmp_path, name):
    values, billions, token_bytes, groups = SHIPPED[name]
    model = model_of(config(tmp_path, values), name)
    assert model == model_named(name)
    assert model.num_params / 1e9 == pytest.approx(billions, rel=0.006)
    assert (model.kv_bytes_per_token, [group.name for group in model.groups]) == (token_bytes, groups)


def test_windows_states_and_quantized_weights_are_read(tmp_path):
    gemma = model_named("gemma-3-27b").groups
    assert [(group.num_layers, group.window) for group in gemma] == [(10, None), (52, 1024)]
    assert model_named("qwen3-next-80b-a3b").states.state_bytes == 2 * (32 * 128 * 128 + 3 * 8192)
    assert model_named("nemotron-h-8b").states.state_bytes == 2 * (128 * 64 * 128 + 3 * (8192 + 2 * 8 * 128))
    assert model_named("gpt-oss-120b").weight_bytes / 1e9 == pytest.approx(65.2, rel=0.01)  # its safetensors
    assert model_named("deepseek-v3").weight_bytes / 1e9 == pytest.approx(671 + 1.9, rel=0.01)
    awq = LLAMA | {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}
    assert model_of(config(tmp_path, awq)).weight_bits == 4 + 20 / 128
    qwen = hf_configs.QWEN25 | {"use_sliding_window": True, "max_window_layers": 21}
    assert [group.num_layers for group in model_of(config(tmp_path, qwen)).groups] == [21, 7]


@pytest.mark.parametrize(
    ("kind", "more", "head_size", "kv_heads", "tied"),
    [
        ("qwen2", {"num_key_value_heads": 2, "tie_word_embeddings": True}, 128, 2, True),
        ("qwen3", {"head_dim": 64}, 64, 8, False),
        ("mistral", {"num_key_value_heads": None, "head_dim": None}, 128, 32, False),
    ],
)
def test_gated_model_shapes_are_read(tmp_path, kind, more, head_size, kv_heads, tied):
    model = model_of(config(tmp_path, LLAMA | {"model_type": kind} | more))
    assert (model.head_size, model.num_kv_heads, model.tied_embedding) == (head_size, kv_heads, tied)
    assert model.ffn_matrices == 3


def test_written_model_file_is_read_back(tmp_path, capsys):
    out = tmp_path / "mine.json"
    call("import-model", [str(config(tmp_path, LLAMA)), "--name", "mine", "--out", str(out)])
    assert "mine: 8.03 billion weights, 128 KiB of KV cache a token, up to 8,192 tokens" in capsys.readouterr().out
    assert model_named(str(out)) == ModelSpec(**json.loads(out.read_text()))


def test_run_accepts_an_imported_model(testbed, tmp_path):
    testbed.done("import-model", str(config(tmp_path, LLAMA)), "--name", "mine")
    out = tmp_path / "model" / "mine.yaml"
    run = ("model=mine", "server=h200", "arrivals.duration_s=5", "outputs=summary")
    testbed.done("run", "--config-dir", str(tmp_path), *run)
    values = yaml.safe_load(out.read_text())
    assert values.pop("_target_") == "testbed.core.specs.ModelSpec"
    known = asdict(model_of(tmp_path / "config.json", "mine"))
    assert values == {key: value for key, value in known.items() if value is not None}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is none of the supported model types"),
        (LLAMA | {"num_hidden_layers": "many"}, "num_hidden_layers='many'"),
        (LLAMA | {"quantization_config": {}} | {"torch_dtype": "int4"}, "'int4': none of float16"),
        (OPT | {"word_embed_proj_dim": 512}, "OPT-350M"),
        (LLAMA | {"num_key_value_heads": 5}, "32 heads do not share 5 heads of K and V"),
        (LLAMA | {"num_key_value_heads": -8}, "num_kv_heads is -8"),
        (LLAMA | {"head_dim": -128}, "head_size is -128"),
        (LLAMA | {"hidden_size": 4100}, "hidden_size 4100 is no multiple of 32 heads"),
        (
            MISTRAL | {"num_local_experts": 8},
            "num_local_experts=8: changes the memory of a model, and is not supported",
        ),
        (CHUNKED, "attention_chunk_size=8192: changes the memory"),
        (GEMMA_2 | {"layer_types": ["chunked_attention"] * 46}, "layer_types: must list 46 of full_attention, sliding"),
        (QWEN3_MOE | {"decoder_sparse_step": 2}, "decoder_sparse_step: dense layers between those of experts"),
        (LLAMA | {"quantization_config": {"quant_method": "hqq"}}, "quant_method='hqq': is none of fp8, mxfp4, gptq"),
        ({"num_layers": 2, "ffn_matrices": 3}, "not the values of a ModelSpec: .*'name'"),
        ([], "not a JSON object"),
    ],
)
def test_unsupported_model_config_is_refused(tmp_path, values, message):
    refuses(message, model_of, config(tmp_path, values))


@pytest.mark.parametrize("text", ["[" * 100_000, '{"hidden_size": ' + "9" * 5000 + "}"], ids=["deep", "digits"])
def test_a_file_that_python_cannot_read_is_named(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    refuses(r"config.json: not a JSON file", model_of, tmp_path / "config.json")


def test_unknown_model_name_lists_the_known_ones():
    refuses("opt-13b", model_named, "gpt-5")
    assert model_named("meta-llama/Llama-3.1-8B").max_len == 131_072


class Harmful:
    """Runs a command where a careless reader would."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_imported_artifact_pairs_keep_their_order(tmp_path, capsys):
    (tmp_path / "a.pkl").write_bytes(pickle.dumps([(7, 9), [3, 2], ([11, 12, 13, 14, 15], [16])]))  # lengths, token ids
    call("import-lengths", [str(tmp_path / "a.pkl"), str(tmp_path / "a.csv")])
    rows = CsvLengths(str(tmp_path / "a.csv")).read()
    reported = capsys.readouterr().out
    assert "3 requests, means of 5.00 and 4.00 tokens" in reported
    assert hashlib.sha256(b"7,9\n3,2\n5,1\n").hexdigest() + ": not rows that this project knows" in reported
    assert (rows.prompt_len.tolist(), rows.output_len.tolist()) == ([7, 3, 5], [9, 2, 1])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no pickle",
        pickle.dumps({}),
        pickle.dumps([]),
        pickle.dumps([(1, 2, 3)]),
        pickle.dumps([("a", 1)]),
        pickle.dumps([([True], 1)]),
    ],
)
def test_pickle_of_another_form_is_refused(tmp_path, content):
    (tmp_path / "a.pkl").write_bytes(content)
    refuses(r"a\.pkl", call, "import-lengths", [str(tmp_path / "a.pkl"), str(tmp_path / "a.csv")])


def test_import_executes_no_code_of_a_pickle(tmp_path):
    (tmp_path / "a.pkl").write_bytes(pickle.dumps([Harmful(str(tmp_path / "harm"))]))
    refuses("mkdir", call, "import-lengths", [str(tmp_path / "a.pkl"), str(tmp_path / "a.csv")])
    assert not (tmp_path / "harm").exists()
