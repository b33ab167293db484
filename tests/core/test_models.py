"""Golden rows of the models that ship, and of what is made of files of models when single values
change.
"""

import json
from collections import Counter

import hf_configs
import pytest

from testbed.core.errors import InputError
from testbed.core.hf_config import model_of
from testbed.core.hf_fields import types
from testbed.core.model_files import model_names
from testbed.core.shapes import read_model
from testbed.core.specs import ModelSpec

CONFIGS = {name: config for name, config in vars(hf_configs).items() if name.isupper()}
KINDS = ("same", "other", "refused", "odd_types")
OPTIONAL = {
    "attention_head_dim",
    "dtype",
    "head_dim",
    "mamba_ssm_cache_dtype",
    "max_window_layers",
    "mlp_only_layers",
    "model_type",
    "n_shared_experts",
    "num_key_value_heads",
    "q_lora_rank",
    "sliding_window_pattern",
}
VALUES = (
    None,
    0,
    1,
    7,
    -1,
    True,
    "float32",
    [],
    ["sliding_attention"] * 24,
    {"quant_method": "fp8"},
    {"quant_method": "gptq", "bits": 4},
    {"quant_method": "awq", "bits": 4, "group_size": 64},
)


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


@pytest.mark.parametrize("name", CONFIGS)
def test_changed_model_files_equal_the_golden_count(name, golden, tmp_path):
    """Each key gets each value in turn: the same model, another one, or a refusal.

    odd_types: values of a type that no such file has, which end in an exception of Python.
    """
    config, path = CONFIGS[name], tmp_path / "model" / "config.json"
    path.parent.mkdir()  # after which the model is named
    path.write_text(json.dumps(config))
    unchanged, counts = model_of(path), Counter()
    text = config.get("text_config", config)
    for key in sorted({*text, *types()["memory"], *OPTIONAL}):
        for value in VALUES:
            changed = {**text, key: value}
            path.write_text(
                json.dumps(changed if text is config else {**config, "text_config": changed})
            )
            try:
                model = model_of(path)
            except InputError:
                counts["refused"] += 1
            except (TypeError, ValueError):
                counts["odd_types"] += 1
            else:
                counts["same" if model == unchanged else "other"] += 1
    golden("configs.csv", name, {kind: counts[kind] for kind in KINDS})
