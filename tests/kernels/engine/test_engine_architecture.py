"""The network of a model folder or a shipped model, as Hugging Face's modelling code reads
from config.json.
"""

import json
import math
import re
from dataclasses import replace

import pytest
from refusals import refuses

from testbed.core.shapes import read_model
from testbed.kernels.engine.architecture import Architecture, of_folder, of_spec

SHAPE = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 61,
    "max_position_embeddings": 128,
}
OPT = {**SHAPE, "model_type": "opt", "ffn_dim": 64}
GATED = {**SHAPE, "num_key_value_heads": 2, "intermediate_size": 48}
LLAMA, QWEN2 = ({**GATED, "model_type": name} for name in ("llama", "qwen2"))
SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
FOUND = {  # family, norm_eps, qkv_bias, rope_theta, rope_scaling
    "OPT": (OPT, "opt", 1e-5, False, 1e4, None),
    "LLaMA with nothing said": (LLAMA, "llama", 1e-6, False, 1e4, None),
    "LLaMA 3": (
        {**LLAMA, "rms_norm_eps": 1e-5, "rope_theta": 5e5},
        "llama",
        1e-5,
        False,
        5e5,
        None,
    ),
    "LLaMA 3.1": (
        {**LLAMA, "rope_theta": 5e5, "rope_scaling": SCALING},
        "llama",
        1e-6,
        False,
        5e5,
        SCALING,
    ),
    "RoPE as transformers 5 writes it": (
        {**LLAMA, "rope_parameters": {"rope_theta": 7e4, "rope_type": "default"}},
        "llama",
        1e-6,
        False,
        7e4,
        None,
    ),
    "the old key of a type": (
        {**LLAMA, "rope_scaling": {"type": "default"}},
        "llama",
        1e-6,
        False,
        1e4,
        None,
    ),
    "LLaMA with biases": ({**LLAMA, "attention_bias": True}, "llama", 1e-6, True, 1e4, None),
    "Qwen2, whose biases no key says": (
        {**QWEN2, "rope_theta": 1e6},
        "qwen2",
        1e-6,
        True,
        1e6,
        None,
    ),
}
REFUSED = {
    "norms behind the blocks": (
        {**OPT, "do_layer_norm_before": False},
        "do_layer_norm_before=False",
    ),
    "OPT with another activation": (
        {**OPT, "activation_function": "gelu"},
        "activation_function='gelu'",
    ),
    "another activation": ({**LLAMA, "hidden_act": "gelu"}, "hidden_act='gelu'"),
    "biases in the MLP": ({**LLAMA, "mlp_bias": True}, "mlp_bias=True"),
    "another RoPE": ({**LLAMA, "rope_scaling": {"rope_type": "yarn"}}, "RoPE of type 'yarn'"),
    "another RoPE by the old key": (
        {**LLAMA, "rope_scaling": {"type": "linear"}},
        "RoPE of type 'linear'",
    ),
    "Qwen2 with windows from some layer on": (
        {**QWEN2, "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
        "max_window_layers=1",
    ),
    "another family": ({**LLAMA, "model_type": "gpt2"}, "choose one of opt, llama, mistral, qwen2"),
}


WINDOWS = {
    "Mistral": ({**GATED, "model_type": "mistral", "sliding_window": 16}, (16, 16)),
    "Mistral without a window": (
        {**GATED, "model_type": "mistral", "sliding_window": None},
        (None, None),
    ),
    "Mistral with windows in the listed layers": (
        {
            **GATED,
            "model_type": "mistral",
            "sliding_window": 16,
            "layer_types": ["full_attention", "sliding_attention"],
        },
        (None, 16),
    ),
}


def read(folder, config):
    (folder / "config.json").write_text(json.dumps(config))
    return of_folder(folder)


@pytest.mark.parametrize(
    ("config", "family", "eps", "bias", "theta", "scaling"), FOUND.values(), ids=FOUND
)
def test_config_of_a_folder_gives_the_architecture(
    tmp_path, config, family, eps, bias, theta, scaling
):
    architecture = read(tmp_path, config)
    assert architecture == Architecture(
        spec=architecture.spec,
        family=family,
        norm_eps=eps,
        qkv_bias=bias,
        rope_theta=theta,
        rope_scaling=scaling,
    )
    assert architecture.is_opt == (family == "opt")
    assert (architecture.q_width, architecture.kv_width) == (
        (32, 32) if architecture.is_opt else (32, 16)
    )


@pytest.mark.parametrize(("config", "words"), REFUSED.values(), ids=REFUSED)
def test_unsupported_architectures_are_refused(tmp_path, config, words):
    assert refuses(re.escape(words), read, tmp_path, config).startswith(
        f"{tmp_path / 'config.json'}: "
    )


def test_a_folder_without_a_config_is_refused(tmp_path):
    refuses(r"config\.json: ", of_folder, tmp_path)


@pytest.mark.parametrize(
    ("name", "family", "bias", "theta"),
    [
        ("opt-13b", "opt", False, 1e4),
        ("llama-13b", "llama", False, 1e4),
        ("llama-3-8b", "llama", False, 5e5),
        ("qwen2.5-0.5b", "qwen2", True, 1e6),
    ],
)
def test_shipped_models_have_the_options_of_their_family(name, family, bias, theta):
    architecture = of_spec(read_model(name))
    assert (
        architecture.spec,
        architecture.family,
        architecture.qkv_bias,
        architecture.rope_theta,
    ) == (
        read_model(name),
        family,
        bias,
        theta,
    )


@pytest.mark.parametrize("scaling", [None, SCALING])
def test_rotary_frequencies_follow_roformer_and_llama_3_1(scaling):
    pytest.importorskip("torch", reason="torch is not installed")
    from testbed.kernels.engine.maths import rotary_table

    spec = replace(read_model("llama-3-8b"), head_size=8, max_len=90)
    table = rotary_table(Architecture(spec, "llama", rope_theta=100.0, rope_scaling=scaling), "cpu")
    for i, (cosines, sines) in enumerate(table.permute(2, 1, 0).tolist()):
        rate = 100 ** (-2 * i / 8)
        # A rate of which the original 64 positions hold at most one turn is divided by 8, of four
        # it stays
        if scaling:
            share = min(max((64 * rate / math.tau - 1) / (4 - 1), 0), 1)
            rate = share * rate + (1 - share) * rate / 8
        assert cosines == pytest.approx([math.cos(p * rate) for p in range(90)], abs=1e-6)
        assert sines == pytest.approx([math.sin(p * rate) for p in range(90)], abs=1e-6)


@pytest.mark.parametrize(("config", "windows"), WINDOWS.values(), ids=WINDOWS)
def test_windows_are_those_of_the_file(tmp_path, config, windows):
    assert read(tmp_path, config).windows == windows


def test_every_model_of_gpu_verify_can_be_served(tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    from testbed.kernels.engine.verify.against_transformers import known_models

    windows = {}
    for name, values in known_models().items():
        values.pop("kv_dtype_bytes", None)
        served = values | values.pop("served_as", {})
        config = {"max_position_embeddings": 2048, **served}
        windows[name] = read(tmp_path, config).windows
    assert windows["tiny-windows-in-some-layers"] == (None, 48, 48, 48)
    assert windows["tiny-mistral"] == (48,) * 4
