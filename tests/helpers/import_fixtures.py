"""Small folders as LLMServingSim and AIConfigurator write them, made by hand."""

import csv
import json
from pathlib import Path

import pandas as pd
import pytest

from testbed.experiments.cli.main import call

TABLES = Path(__file__).parents[1] / "golden" / "aiconfigurator"
MODEL = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
    "torch_dtype": "bfloat16",
}
GPU = {
    "name": "toy",
    "memory_bytes": 10**9,
    "memory_bandwidth": 1e12,
    "fp16_flops": 1e14,
    "host_bandwidth": 1e10,
    "link_bandwidth": 1e11,
}
DENSE = {
    "layernorm": 1.0,
    "qkv_proj": 3.0,
    "rotary_emb": 0.5,
    "o_proj": 2.0,
    "gate_up_proj": 5.0,
    "act_fn": 1.5,
    "down_proj": 4.0,
    "embedding": 0.25,
    "final_layernorm": 0.75,
}
SHEET = """
gpu: {mem_bw: 2.0e12, mem_capacity: 85899345920, bfloat16_tc_flops: 3.12e14}
node: {pcie_bw: 3.2e10, intra_node_bw: 3.0e11}
"""
META = """
vllm_version: 0.19.0
gpu: Toy GPU
skew_profile: {grid: {skew_rep: 4.0}}
skew_fit: {per_tp: {1: {alpha_default: 0.05}}}
"""


def write_csv(path, header, rows):
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(header.split(","))
        table.writerows(rows)


def write_model(folder):
    path = folder / "toy.json"
    path.write_text(json.dumps(MODEL))
    return path


def write_gpu(folder):
    path = folder / "gpu.json"
    path.write_text(json.dumps(GPU))
    return path


def attention_us(chunk, past, seqs, kv):
    return 2 + chunk / 64 + past / 256 + seqs * kv / 128


def write_llmservingsim(folder, degree=1):
    """A profiler's folder: every layer takes its time in DENSE at one token and twice that at
    64.
    """
    (folder / "meta.yaml").write_text(META)
    here = folder / f"tp{degree}"
    here.mkdir()
    dense = [
        [name, tokens, us * times]
        for name, us in DENSE.items()
        for tokens, times in ((1, 1), (64, 2))
    ]
    write_csv(here / "dense.csv", "layer,tokens,time_us", dense)
    rows = [[name, n, us] for name, us in (("lm_head", 7.0), ("sampler", 3.0)) for n in (1, 64)]
    write_csv(here / "per_sequence.csv", "layer,sequences,time_us", rows)
    grid = [
        [chunk, past, seqs, kv, attention_us(chunk, past, seqs, kv)]
        for chunk, pasts in ((0, (0,)), (16, (0, 256)), (128, (0, 256)))
        for past in pasts
        for seqs, kvs in ((0, (0,)), (1, (15, 255)), (8, (15, 255)))
        for kv in kvs
        if chunk or seqs
    ]
    write_csv(here / "attention.csv", "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us", grid)
    skew = [
        [0, "n<=8", "sr<=40%", "kvB<=1k", "kp=0", 0.3, 4],
        [0, "n<=8", "sr>70%", "kvB<=1k", "kp=0", -1.5, 2],
    ]
    write_csv(
        here / "skew_fit.csv",
        "pc,n_label,skew_rate_label,kv_big_label,kp_label,alpha,n_samples",
        skew,
    )
    return here


def write_profile(folder, *arguments):
    """The profile of such a folder, imported for the toy model."""
    out = folder / "profile.json"
    model = str(write_model(folder))
    call(
        "import profile",
        [str(write_llmservingsim(folder)), "--out", str(out), "--model", model, *arguments],
    )
    return out


@pytest.fixture
def profile(tmp_path):
    """The path of such a profile, of the toy GPU."""
    return str(write_profile(tmp_path, "--gpu", str(write_gpu(tmp_path))))


def write_tables(folder, tables):
    """AIConfigurator's folder of a GPU with these parquet tables, and its data sheet."""
    for name, table in tables.items():
        path = folder / "systems" / "data" / "toy" / f"{name}_perf.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        table.to_parquet(path)
    (folder / "systems" / "toy.yaml").write_text(SHEET)
    return folder / "systems" / "data" / "toy"


def write_every_table(folder):
    """AIConfigurator's folder of a GPU with every kind of table, each of few rows that formulas
    made.
    """
    return write_tables(
        folder,
        {str(path.relative_to(TABLES))[:-4]: pd.read_csv(path) for path in TABLES.rglob("*.csv")},
    )
