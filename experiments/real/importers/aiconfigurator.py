"""NVIDIA's AIConfigurator (github.com/ai-dynamo/aiconfigurator): kernel times of a GPU as parquet
tables.

Latencies are milliseconds of one layer and forward pass. A profile is put together from matrix
products by shape, prefill and decode attention by heads, and all-reduces; of models that are not
plain also from windows, latent attention, mixtures of experts and gated delta nets.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from testbed.core.errors import InputError
from testbed.core.specs import GpuSpec, ModelSpec
from testbed.cost.analytic import pairs_of
from testbed.experiments.real.importers import aiconfigurator_tables as kernels
from testbed.experiments.real.importers.aiconfigurator_groups import (
    WEIGHTS,
    add_experts,
    add_latent,
    add_states,
)
from testbed.experiments.real.importers.imported import Imported, Requested, source
from testbed.experiments.real.importers.known_shapes import data_sheet, model_named

NAME = "AIConfigurator"
KV = {1: "fp8", 2: kernels.DTYPE}  # bytes of a cached value, and their name in the tables


def is_here(folder: Path) -> bool:
    """True if the folder is that of one GPU."""
    return folder.is_dir() and any(folder.glob(source(NAME)["tables"]["gemm"]))


def read(folder: Path, requested: Requested) -> Imported:
    """The profile of one model's shard, from these tables."""
    return from_tables(folder, tables_of(folder), requested)


def tables_of(folder: Path) -> dict[str, Any]:
    """The newest tables of each kind that the folder has."""
    patterns = source(NAME)["tables"].items()
    return {
        name: kernels.read_parquet(folder, pattern)
        for name, pattern in patterns
        if any(folder.glob(pattern))
    }


def from_tables(folder: Path, tables: Mapping[str, Any], requested: Requested) -> Imported:
    """The profile from tables that were already read.

    Matrix products are left out if their table is missing. The folder is only used for messages and
    for the data sheet.
    """
    model, num_gpus = _model(folder, requested), requested.tensor_parallel or 1
    kv_dtype, weights = _type_names(model)
    _check_degree(model, num_gpus)
    first = next(iter(tables.values())).iloc[0]
    device, version = str(first["device"]), f"vLLM {first['version']}"
    gpu = data_sheet(requested.gpu, device, folder) if requested.gpu else _data_sheet(folder)
    imported = Imported(
        NAME, device, model, num_gpus, gpu, origin={"folder": folder.name, "kernels": version}
    )
    if "gemm" in tables:
        _add_gemms(imported, tables["gemm"], weights)
    if model.latent:
        add_latent(imported, tables, kv_dtype, weights)
    else:
        _add_attention(imported, tables, kv_dtype)
    if model.experts:
        add_experts(imported, tables)
    if model.states:
        add_states(imported, tables)
    if num_gpus > 1 and "all_reduce" in tables:
        points = kernels.all_reduce_points(tables["all_reduce"], num_gpus, imported.notes)
        imported.add("all_reduce", points, "vLLM's own, in a CUDA graph")
    imported.notes += source(NAME)["notes"]
    return imported


def _type_names(model: ModelSpec) -> tuple[str, str]:
    """The names that the tables give to the types of K and V and of the weights."""
    if model.experts and model.experts.latent_size:
        raise InputError(key=model.name, problem="experts of latent vectors are in no table")
    kv_dtype = KV.get(model.kv_dtype_bytes or model.dtype_bytes)
    weights = WEIGHTS.get(model.weight_bits)
    if kv_dtype is None or weights is None:
        raise InputError(
            key=model.name,
            problem=(
                f"K and V of {model.kv_dtype_bytes} bytes, weights of {model.weight_bits} bits: "
                "are in no table"
            ),
            remedy="choose from 1 and 2 bytes, null and 8 bits",
        )
    return kv_dtype, weights


def _check_degree(model: ModelSpec, num_gpus: int) -> None:
    """Raise InputError unless each GPU gets as many heads and feed-forward columns."""
    divided = (model.num_heads, model.experts.size if model.experts else model.ffn_size)
    if any(size % num_gpus for size in divided):
        raise InputError(
            key="--tensor-parallel",
            value=num_gpus,
            problem=f"does not divide {model.num_heads} heads of {model.name}",
        )


def _model(folder: Path, requested: Requested) -> ModelSpec:
    if requested.model is None:
        raise InputError(
            key=folder, problem="its tables are of several models", remedy="name one by --model"
        )
    model = (
        requested.model if isinstance(requested.model, ModelSpec) else model_named(requested.model)
    )
    types: dict[str, Any] = {
        "kv_dtype_bytes": requested.kv_dtype_bytes,
        "weight_bits": requested.weight_bits,
    }
    return replace(model, **{name: value for name, value in types.items() if value is not None})


def _heads(model: ModelSpec, num_gpus: int) -> tuple[int, int]:
    """Query heads and heads of K and V of one of these GPUs; with fewer than GPUs, each has a copy
    of one.
    """
    return model.num_heads // num_gpus, max(1, model.num_kv_heads // num_gpus)


def _products(model: ModelSpec, num_gpus: int) -> dict[str, kernels.Product]:
    """The matrix products of all layers, for each of num_layers: name -> (n, k, how many of it a
    layer has). The products of latent attention and of experts are in the sections of these.
    """
    hidden, products = model.hidden_size, dict[str, tuple[int, int, int]]()

    def add_network(name: str, size: int, count: int) -> None:
        columns = size // num_gpus
        products[f"{name}up"] = (model.ffn_matrices - 1) * columns, hidden, count
        products[f"{name}down"] = hidden, columns, count

    if not model.latent:
        heads, kv_heads = _heads(model, num_gpus)
        products["qkv"] = (
            (heads + 2 * kv_heads) * model.head_size,
            hidden,
            model.num_attention_layers,
        )
        products["out"] = hidden, heads * model.head_size, model.num_attention_layers
    add_network("", model.ffn_size, model.ffn_layers - model.num_expert_layers)
    if model.experts and model.experts.shared_size:
        add_network("shared ", model.experts.shared_size, model.num_expert_layers)
    if model.states:
        products["state"] = (
            model.states.params // hidden // num_gpus,
            hidden,
            model.states.num_layers,
        )
    return {
        name: (n, k, count / model.num_layers) for name, (n, k, count) in products.items() if count
    }


def _data_sheet(folder: Path) -> GpuSpec | None:
    path = folder.parent.parent / f"{folder.name}.yaml"
    if not path.is_file():
        return None
    sheet = yaml.safe_load(path.read_text(encoding="utf-8"))
    gpu, node = sheet["gpu"], sheet["node"]
    return GpuSpec(
        name=folder.name,
        memory_bytes=int(gpu["mem_capacity"]),
        memory_bandwidth=float(gpu["mem_bw"]),
        fp16_flops=float(gpu["bfloat16_tc_flops"]),
        host_bandwidth=float(node["pcie_bw"]),
        link_bandwidth=float(node["intra_node_bw"]),
    )


def _add_gemms(imported: Imported, table: Any, weights: str) -> None:
    model, products = imported.model, _products(imported.model, imported.num_gpus)
    layer = kernels.Gemms(table, weights).summed(products, imported.notes)
    plain = kernels.Gemms(table)
    if model.experts:  # the router is not quantized
        router = {
            "router": (
                model.experts.count,
                model.hidden_size,
                model.num_expert_layers / model.num_layers,
            )
        }
        routed = dict(plain.summed(router, imported.notes))
        layer = [[n, round(us + routed[n], 3)] for n, us in layer if n in routed]
        products |= router
    imported.add("linear", layer, "matrix products alone: " + ", ".join(products))
    output = {"head": (-(-model.vocab_size // imported.num_gpus), model.hidden_size, 1.0)}
    imported.add("output_head", plain.summed(output, imported.notes), "output projection alone")
    imported.notes.append(
        f"linear: up to {layer[-1][0]:,} tokens an iteration; beyond it the last line continues"
    )


def _add_attention(imported: Imported, tables: Mapping[str, Any], kv_dtype: str) -> None:
    model, notes = imported.model, imported.notes
    heads, size = _heads(model, imported.num_gpus), model.head_size
    decode, prefill = (
        kernels.attention_rows(tables[name], size, kv_dtype, notes)
        for name in ("decode", "prefill")
    )
    decodes = kernels.decode_points(decode, *heads, notes)
    prefills = kernels.prefill_points(prefill, *heads, notes, not model.is_plain)
    if model.window is None or model.window.num_layers < model.num_attention_layers:
        _add_both(
            imported,
            "",
            decodes,
            prefills,
            "equal lengths; vLLM's attention layer, cache write included",
        )
    if model.window is not None:
        _add_windowed(imported, tables, kv_dtype, decodes, prefills)


def _add_windowed(
    imported: Imported,
    tables: Mapping[str, Any],
    kv_dtype: str,
    decodes: kernels.Points,
    prefills: kernels.Points,
) -> None:
    """Attention with a window, as it was measured; else the times of full attention, `decodes` and
    `prefills`, up to the window, and of longer prompts its share of the pairs.
    """
    model, notes = imported.model, imported.notes
    assert model.window is not None
    heads, size = _heads(model, imported.num_gpus), model.head_size
    window, note = model.window.size, f"window of {model.window.size:,}"
    rows = (kernels.typed_rows(tables[name], kv_dtype, window) for name in ("decode", "prefill"))
    decode, prefill = (of_window[of_window["head_dim"] == size] for of_window in rows)
    if len(decode) and len(prefill):
        decodes = kernels.decode_points(decode, *heads, notes)
        prefills = kernels.prefill_points(prefill, *heads, notes, every=True)
    else:
        note += ": full attention's, up to the window; of longer prompts the share of its pairs"
        notes.append(f"outside the grid: {note}")
        imported.not_measured["window"] = "full attention's times"
        decodes = [point for point in decodes if point[1] <= window * point[0]]
        prefills = [
            [n, new, past, round(us * pairs_of(new, 0, window) / pairs_of(new, 0, window=None), 3)]
            for n, new, past, us in prefills
        ]
    _add_both(imported, "window_", decodes, prefills, note)


def _add_both(
    imported: Imported, kind: str, decodes: kernels.Points, prefills: kernels.Points, note: str
) -> None:
    includes = ["cache_write"]
    imported.add(f"{kind}decode_attention", decodes, note, includes=includes)
    imported.add(
        f"{kind}prefill_attention",
        prefills,
        "whole prompts; cache write included",
        includes=includes,
    )
