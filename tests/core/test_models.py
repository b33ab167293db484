"""Golden rows of the models that ship, and what single values of a file change."""

import json
from contextlib import suppress

import hf_configs
import pytest

from testbed.core.errors import InputError
from testbed.core.hf_config import model_of
from testbed.core.model_files import model_names
from testbed.core.shapes import read_model
from testbed.core.specs import ModelSpec

CONFIGS = {name: config for name, config in vars(hf_configs).items() if name.isupper()}


@pytest.mark.parametrize("name", model_names())
def test_sizes_of_each_model_equal_its_golden_row(name, golden):
    model = read_model(name)
    counts = {
        key: getattr(model, key)
        for key, value in vars(ModelSpec).items()
        if isinstance(value, property)
    }
    num_gpus = 2 if model.has_uneven_heads else 16  # more are refused
    golden(
        "models.csv",
        name,
        {**counts, "read_bytes": model.read_bytes(1.5), "kv_copies": model.kv_copies(num_gpus)},
    )


@pytest.mark.parametrize("name", ["LLAMA", "QWEN3_MOE", "DEEPSEEK_V3"])
@pytest.mark.parametrize("value", ["x", [], {"a": 1}, -1, 1.5])
def test_an_odd_value_of_any_key_is_read_or_refused(name, value, tmp_path):
    config, path = CONFIGS[name], tmp_path / "model" / "config.json"
    path.parent.mkdir()  # after which the model is named
    for key in config:
        path.write_text(json.dumps({**config, key: value}))
        with suppress(InputError):  # and nothing else
            assert isinstance(model_of(path), ModelSpec), key


def shape_of(name, tmp_path, **changed):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIGS[name], **changed}))
    return model_of(path)


def test_values_of_a_file_are_those_of_the_model(tmp_path):
    """A key that is null has its class's default, which for LLaMA's K and V is all heads."""
    heads = CONFIGS["LLAMA"]["num_attention_heads"]
    assert shape_of("LLAMA", tmp_path, num_key_value_heads=None).num_kv_heads == heads
    assert shape_of("LLAMA", tmp_path, num_key_value_heads=8).num_kv_heads == 8
    layers = CONFIGS["LLAMA"]["num_hidden_layers"]
    assert shape_of("LLAMA", tmp_path, num_hidden_layers=layers + 1).num_layers == layers + 1
