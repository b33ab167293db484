"""From a config or a folder to tokens and raw rows; what does not fit is refused in one line."""

import csv
import json

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import tiny_models as tiny  # noqa: E402

from kernels.engine.__main__ import main  # noqa: E402
from kernels.engine.architecture import of_folder  # noqa: E402
from kernels.engine.config import make_run  # noqa: E402
from kernels.engine.generate import generate  # noqa: E402
from kernels.engine.safetensors_file import write_file  # noqa: E402
from kernels.engine.weights import load_weights  # noqa: E402
from testbed.core.errors import InputError  # noqa: E402

OPT = {"model_type": "opt", "hidden_size": 32, "num_attention_heads": 4, "ffn_dim": 64, "num_hidden_layers": 2,
       "vocab_size": 61, "max_position_embeddings": 128}  # fmt: skip
QWEN2 = {"model_type": "qwen2", "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 1,
         "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 61, "max_position_embeddings": 128,
         "tie_word_embeddings": True}  # fmt: skip


def folder(path, config, weights=None):
    """A model folder as Hugging Face writes it."""
    arch = tiny.architecture(config["model_type"])
    w = weights or tiny.weights(arch)
    tensors = {}
    names = {"opt": opt_names, "qwen2": gated_names}[config["model_type"]]
    names(tensors, arch, w)
    (path / "config.json").write_text(json.dumps(config))
    write_file(path / "model.safetensors", tensors)
    return w


def opt_names(tensors, arch, w):
    at = "model.decoder."
    tensors[f"{at}embed_tokens.weight"] = w.embedding
    tensors[f"{at}embed_positions.weight"] = torch.cat([torch.zeros(2, 32), w.positions])
    put(tensors, f"{at}final_layer_norm", w.norm)
    for i, layer in enumerate(w.layers):
        here = f"{at}layers.{i}."
        parts = ("self_attn_layer_norm", "self_attn.out_proj", "final_layer_norm", "fc1", "fc2")
        for name, part in zip(parts, (layer.norm_1, layer.out, layer.norm_2, layer.up, layer.down), strict=True):
            put(tensors, here + name, part)
        split(tensors, here + "self_attn.", layer.qkv, {"q_proj": 32, "k_proj": 32, "v_proj": 32})


def gated_names(tensors, arch, w):
    tensors["model.embed_tokens.weight"] = w.embedding
    put(tensors, "model.norm", w.norm)
    for i, layer in enumerate(w.layers):
        here = f"model.layers.{i}."
        parts = ("input_layernorm", "self_attn.o_proj", "post_attention_layernorm", "mlp.down_proj")
        for name, part in zip(parts, (layer.norm_1, layer.out, layer.norm_2, layer.down), strict=True):
            put(tensors, here + name, part)
        split(tensors, here + "self_attn.", layer.qkv, {"q_proj": 32, "k_proj": 8, "v_proj": 8})
        split(tensors, here + "mlp.", layer.up, {"gate_proj": 48, "up_proj": 48})


def put(tensors, name, part):
    tensors[f"{name}.weight"] = part.weight
    if part.bias is not None:
        tensors[f"{name}.bias"] = part.bias


def split(tensors, at, part, widths):
    first = 0
    for name, width in widths.items():
        tensors[f"{at}{name}.weight"] = part.weight[first : first + width].contiguous()
        if part.bias is not None:
            tensors[f"{at}{name}.bias"] = part.bias[first : first + width].contiguous()
        first += width


@pytest.mark.parametrize("config", [OPT, QWEN2], ids=["opt", "qwen2"])
def test_a_folder_gives_the_same_model(tmp_path, config):
    want = folder(tmp_path, config)
    arch = of_folder(tmp_path)
    got = load_weights(arch, tmp_path, "cpu", torch.float32)
    tokens = torch.arange(20)
    assert torch.equal(tiny.dense_logits(arch, got, tokens), tiny.dense_logits(arch, want, tokens))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "model_type is 'gpt2'; the engine runs opt, llama, qwen2"),
        ({"do_layer_norm_before": False}, "do_layer_norm_before is False; the engine runs OPT with True only"),
        ({"hidden_size": 64, "word_embed_proj_dim": 64}, r"has shape \[61, 32\], config.json says \[61, 64\]"),
    ],
)
def test_folders_that_do_not_fit_are_refused(tmp_path, changes, message):
    folder(tmp_path, OPT)
    (tmp_path / "config.json").write_text(json.dumps(OPT | changes))
    with pytest.raises(InputError, match=message):
        load_weights(of_folder(tmp_path), tmp_path, "cpu", torch.float32)


def run_config(tmp_path, **changes):
    """A config as a run folder has it, for a tiny model on a CPU."""
    (tmp_path / "requests.csv").write_text("arrival_s,prompt_len,output_len\n0.0,9,4\n0.01,20,6\n0.02,3,5\n")
    names = tiny.ModelSpec.__dataclass_fields__
    model = {name: getattr(tiny.SHAPES["opt"], name) for name in names}
    limits = {"max_num_batched_tokens": 64, "max_num_seqs": 16}
    gpu = {"_target_": "testbed.core.specs.GpuSpec", "name": "x", "memory_bytes": 1 << 30, "memory_bandwidth": 1e12,
           "fp16_flops": 1e12, "host_bandwidth": 1e9, "link_bandwidth": 1e9}  # fmt: skip
    return {
        "model": {"_target_": "testbed.core.specs.ModelSpec", **model},
        "server": {"_target_": "testbed.core.specs.ServerSpec", "name": "x", "num_gpus": 1, "gpu": gpu,
                   "kv_memory_gib": {"opt": 0.001}},
        "policy": {"_target_": "testbed.memory.paged.paged.Paged", "block_size": 4},
        "scheduler": {"_target_": "testbed.sched.mixed.MixedPrefill", **limits},
        "preemption": {"_target_": "testbed.sched.preemption.Recompute"},
        "requests": str(tmp_path / "requests.csv"),
        "engine": {"device": "cpu", "dtype": "float32", "debug": True, "out": str(tmp_path / "out")},
    } | changes  # fmt: skip


def test_a_config_becomes_a_run_folder(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(run_config(tmp_path)))
    main([str(tmp_path / "config.json")])
    assert "3 arrived, 3 finished, 0 rejected" in capsys.readouterr().out
    requests = list(csv.DictReader((tmp_path / "out" / "requests.csv").open()))
    assert [int(row["output_len"]) for row in requests] == [4, 6, 5]
    assert all(float(r["arrival_s"]) <= float(r["first_token_s"]) <= float(r["finish_s"]) for r in requests)
    iterations = list(csv.DictReader((tmp_path / "out" / "iterations.csv").open()))
    assert sum(int(row["work_decode_seqs"]) for row in iterations) == 3 + 5 + 4
    assert all(float(row["duration_s"]) >= float(row["host_s"]) * 0.5 > 0 for row in iterations)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine": {"device": "cpu", "speed": 9}}, "engine.speed is unknown"),
        ({"engine": {"device": "cpu", "dtype": "int8"}}, "engine.dtype is 'int8'; choose one of float16"),
        ({"policy": {"_target_": "testbed.memory.paged.paged.Peged"}}, "has no Peged"),
    ],
)
def test_bad_configs_are_refused(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        make_run(run_config(tmp_path, **changes))


def test_text_in_text_out(tmp_path):
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    vocabulary = {f"w{i}": i for i in range(61)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    w = folder(tmp_path, OPT)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (text,) = generate(tmp_path, ["w3 w1 w4"], 5, 1, "cpu")
    want = tiny.greedy(tiny.architecture("opt"), w, [3, 1, 4], 5)
    assert text.split() == [f"w{token}" for token in want]
