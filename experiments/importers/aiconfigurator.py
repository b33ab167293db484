"""NVIDIA's AIConfigurator (github.com/ai-dynamo/aiconfigurator): kernel times of a GPU as parquet tables.

Latencies are milliseconds of one layer and forward pass. A profile is put together from matrix products by shape,
prefill and decode attention by heads, and all-reduces.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from testbed.core.errors import InputError
from testbed.core.shapes import check_plain
from testbed.core.specs import GpuSpec, ModelSpec
from testbed.experiments.importers.aiconfigurator_tables import (
    Gemms,
    all_reduce_points,
    decode_points,
    nccl_points,
    prefill_points,
    read_parquet,
)
from testbed.experiments.importers.imported import ONCE, PER_LAYER, Imported, Requested
from testbed.experiments.importers.known_shapes import data_sheet, model_named

NAME = "AIConfigurator"
TABLES = {
    "gemm": "gemm/vllm/*/gemm_perf.parquet",
    "prefill": "attention/vllm/*/context_attention_perf.parquet",
    "decode": "attention/vllm/*/generation_attention_perf.parquet",
    "all_reduce": "comm/vllm/*/custom_allreduce_perf.parquet",
}


def is_here(folder: Path) -> bool:
    """Whether the folder is that of one GPU."""
    return folder.is_dir() and any(folder.glob(TABLES["gemm"]))


def read(folder: Path, requested: Requested) -> Imported:
    """The profile of one model's shard, priced by these tables."""
    if requested.model is None:
        raise InputError(f"{folder}: its tables are of no one model; name one by --model")
    model = requested.model if isinstance(requested.model, ModelSpec) else model_named(requested.model)
    num_gpus = requested.tensor_parallel or 1
    check_plain(model, "this import")
    if model.num_heads % num_gpus or model.ffn_size % num_gpus:
        raise InputError(f"--tensor-parallel {num_gpus}: does not divide {model.num_heads} heads of {model.name}")
    tables = {name: read_parquet(folder, pattern) for name, pattern in TABLES.items() if any(folder.glob(pattern))}
    device = str(tables["gemm"]["device"].iloc[0])
    gpu = data_sheet(requested.gpu, device, folder) if requested.gpu else _data_sheet(folder)
    version = f"vLLM {tables['gemm']['version'].iloc[0]}"
    found = Imported(NAME, device, model, num_gpus, gpu, origin={"folder": folder.name, "kernels": version})
    shard = Shard(model, num_gpus)
    _add_gemms(found, Gemms(tables["gemm"]), shard)
    _add_attention(found, tables, shard)
    if num_gpus > 1:
        own = "all_reduce" in tables
        points = (
            all_reduce_points(tables["all_reduce"], num_gpus, found.notes) if own else nccl_points(folder, num_gpus)
        )
        note = "vLLM's own, in a CUDA graph" if own else "NCCL's, as there is no table of vLLM's own"
        found.add("all_reduce", "one all-reduce", ["num_gpus", "bytes"], points, note)
        found.notes.append(f"all-reduces: {note}")
    found.notes += [
        "missing: norms, activation, rotary and position embedding, sampling; nothing stands in for them",
        "missing: software times; none are charged (see testbed fit-software)",
        "missing: mixed batches and unequal lengths; prefill and decodes are added, lengths taken as equal",
        "missing: swaps; the data sheet's link to the host stands in for them, without latency",
        "missing: block copies; a run that needs them is refused",
        "its matrix products are short bursts at full clocks, so that long prefill comes out optimistic",
    ]
    return found


@dataclass(frozen=True)
class Shard:
    """What one of num_gpus GPUs holds of a model."""

    model: ModelSpec
    num_gpus: int

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.model.num_heads // self.num_gpus

    @property
    def kv_heads(self) -> int:
        """Heads of K and V; with fewer than GPUs, each GPU has a copy of one."""
        return max(1, self.model.num_kv_heads // self.num_gpus)

    def products(self) -> dict[str, tuple[int, int]]:
        """The matrix products of a layer: name -> (n, k)."""
        model, size = self.model, self.model.head_size
        ffn = model.ffn_size // self.num_gpus
        return {
            "qkv": ((self.heads + 2 * self.kv_heads) * size, model.hidden_size),
            "out": (model.hidden_size, self.heads * size),
            "up": ((model.ffn_matrices - 1) * ffn, model.hidden_size),
            "down": (model.hidden_size, ffn),
        }

    def head(self) -> tuple[int, int]:
        """The output projection."""
        return -(-self.model.vocab_size // self.num_gpus), self.model.hidden_size


def _data_sheet(folder: Path) -> GpuSpec | None:
    """systems/NAME.yaml beside systems/data/NAME."""
    path = folder.parent.parent / f"{folder.name}.yaml"
    if not path.is_file():
        return None
    sheet = yaml.safe_load(path.read_text(encoding="utf-8"))
    gpu, node = sheet["gpu"], sheet["node"]
    return GpuSpec(
        folder.name, int(gpu["mem_capacity"]), float(gpu["mem_bw"]), float(gpu["bfloat16_tc_flops"]),
        float(node["pcie_bw"]), float(node["intra_node_bw"]),
    )  # fmt: skip


def _add_gemms(found: Imported, gemms: Gemms, shard: Shard) -> None:
    layer = gemms.summed(shard.products(), found.notes)
    found.add("linear", PER_LAYER, ["num_tokens"], layer, "matrix products alone: " + ", ".join(shard.products()))
    head = gemms.summed({"head": shard.head()}, found.notes)
    found.add("output_head", ONCE, ["num_rows"], head, "output projection alone")
    found.notes.append(f"linear: up to {layer[-1][0]:,} tokens an iteration; beyond it the last line continues")


def _add_attention(found: Imported, tables: dict[str, Any], shard: Shard) -> None:
    heads, kv_heads, size, notes = shard.heads, shard.kv_heads, shard.model.head_size, found.notes
    decodes = decode_points(tables["decode"], heads, kv_heads, size, notes)
    includes = ["cache_write"]
    found.add("decode_attention", PER_LAYER, ["num_seqs", "total_context"], decodes,
              "equal lengths; vLLM's attention layer, cache write included", includes=includes)  # fmt: skip
    prefill = prefill_points(tables["prefill"], heads, kv_heads, size, notes)
    found.add("prefill_attention", PER_LAYER, ["num_seqs", "new_tokens", "past_tokens"], prefill,
              "whole prompts; cache write included", includes=includes)  # fmt: skip
