"""import-model: Hugging Face configs of OPT, LLaMA, Qwen2, Qwen3 and Mistral."""

import json
from dataclasses import asdict

import pytest
import yaml

from experiments.commands import import_model
from experiments.importers.hf_config import model_of
from experiments.importers.known_shapes import model_named
from testbed.core.errors import InputError
from testbed.core.specs import ModelSpec

OPT = {
    "model_type": "opt", "_name_or_path": "facebook/opt-13b", "hidden_size": 5120, "num_hidden_layers": 40,
    "num_attention_heads": 40, "ffn_dim": 20480, "vocab_size": 50272, "max_position_embeddings": 2048,
    "word_embed_proj_dim": 5120, "torch_dtype": "float16",
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip


def config(tmp_path, values, name="config.json"):
    path = tmp_path / name
    path.write_text(json.dumps(values))
    return path


def test_known_models_are_the_config_trees(tmp_path):
    assert model_of(config(tmp_path, OPT)) == model_named("opt-13b")
    assert model_of(config(tmp_path, LLAMA), "llama-3-8b") == model_named("llama-3-8b")


@pytest.mark.parametrize(
    ("kind", "more", "head_size", "kv_heads", "tied"),
    [
        ("qwen2", {"num_key_value_heads": 2, "tie_word_embeddings": True}, 128, 2, True),
        ("qwen3", {"head_dim": 64}, 64, 8, False),
        ("mistral", {"num_key_value_heads": None, "head_dim": None}, 128, 32, False),
    ],
)
def test_gated_models(tmp_path, kind, more, head_size, kv_heads, tied):
    model = model_of(config(tmp_path, LLAMA | {"model_type": kind} | more))
    assert (model.head_size, model.num_kv_heads, model.tied_embedding) == (head_size, kv_heads, tied)
    assert model.ffn_matrices == 3


def test_the_file_can_be_read_back(tmp_path, capsys):
    out = tmp_path / "mine.json"
    import_model.main([str(config(tmp_path, LLAMA)), "--name", "mine", "--out", str(out)])
    assert "mine: 8.03 billion weights, 128 KiB of KV cache a token, up to 8,192 tokens" in capsys.readouterr().out
    assert model_named(str(out)) == ModelSpec(**json.loads(out.read_text()))


def test_a_run_can_choose_the_model(testbed, tmp_path):
    code, _, err = testbed("import-model", str(config(tmp_path, LLAMA)), "--name", "mine")
    assert (code, err) == (0, "")
    out = tmp_path / "model" / "mine.yaml"
    run = ("model=mine", "server=h200", "arrivals.duration_s=5", "outputs=summary")
    code, _, err = testbed("run", "--config-dir", str(tmp_path), *run)
    assert (code, err) == (0, "")
    values = yaml.safe_load(out.read_text())
    assert values.pop("_target_") == "testbed.core.specs.ModelSpec"
    assert values == asdict(model_of(tmp_path / "config.json", "mine"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is not one whose shape is known here"),
        (LLAMA | {"num_hidden_layers": "many"}, "num_hidden_layers is 'many'"),
        (LLAMA | {"quantization_config": {}} | {"torch_dtype": "int4"}, "'int4', quantized or not of"),
        (OPT | {"word_embed_proj_dim": 512}, "OPT-350M"),
        ([], "not a JSON object"),
    ],
)
def test_what_is_not_known_is_refused(tmp_path, values, message):
    with pytest.raises(InputError, match=message):
        model_of(config(tmp_path, values))


def test_a_name_that_nobody_knows_lists_those_that_are():
    with pytest.raises(InputError, match="opt-13b"):
        model_named("gpt-5")
    assert model_named("meta-llama/Llama-3.1-8B").max_len == 131_072
