"""AIConfigurator's tables of what plain models have not: latent attention, mixtures of experts,
gated delta nets.

Times that no table has are computed from the data sheet by the shares that kernels reach
(conf/efficiencies/h200.yaml), and the profile's fingerprint names them.
"""

from collections.abc import Mapping
from typing import Any

import yaml

from testbed.core.errors import InputError
from testbed.core.hf_schemes import FP8_BLOCK_BITS, MXFP4_BITS
from testbed.core.layers import Experts
from testbed.core.specs import GpuSpec, ModelSpec
from testbed.experiments.real.importers.aiconfigurator_tables import DTYPE, Points, points_by
from testbed.experiments.real.importers.imported import Imported
from testbed.experiments.runs.choice_names import files_of

WEIGHTS = {
    None: DTYPE,
    8: "fp8",
    FP8_BLOCK_BITS: "fp8_block",
}  # bits of a weight, and their name in the tables
EXPERTS = {**WEIGHTS, MXFP4_BITS: "w4a16_mxfp4"}
TOKENS = [1 << i for i in range(15)]
Tables = Mapping[str, Any]


def add_latent(imported: Imported, tables: Tables, kv_dtype: str, weights: str) -> None:
    """Latent attention with its matrix products: vLLM's module of DeepSeek-V3, by heads of a
    GPU.
    """
    model, heads = imported.model, imported.model.num_heads // imported.num_gpus
    kind = {"num_heads": heads, "kv_cache_dtype": kv_dtype, "gemm_type": weights}
    decode, prefill = (
        rows_of_kind(tables, f"latent_{phase}", kind) for phase in ("decode", "prefill")
    )
    if model.hidden_size != 7168:
        imported.notes.append(
            f"outside the grid: latent attention at hidden size {model.hidden_size:,}, read as "
            "7,168"
        )
    decode = decode.assign(context=decode["batch_size"] * (decode["isl"] + decode["step"]))
    decodes = points_by(decode, "batch_size", "context")
    prefills = points_by(prefill.assign(past=0), "batch_size", "isl", "past")
    imported.add(
        "decode_attention",
        decodes,
        "latent attention with its matrix products",
        includes=["cache_write"],
    )
    imported.add("prefill_attention", prefills, "the same, whole prompts")


def rows_of_kind(tables: Tables, name: str, kind: Mapping[str, Any]) -> Any:
    """The rows of a kind in the table `name`. Raises InputError if there is no such table, or no
    such row.
    """
    if name not in tables:
        raise InputError(
            key=name,
            problem="there is no such table",
            remedy="give a folder systems/data/GPU of AIConfigurator that has it",
        )
    rows = tables[name]
    rows = rows[(rows[list(kind)] == list(kind.values())).all(axis=1)]
    if not len(rows):
        raise InputError(
            key=name,
            problem=f"no rows of {', '.join((f'{key} {value}' for key, value in kind.items()))}",
            remedy="choose another number of GPUs or other types",
        )
    return rows


def add_experts(imported: Imported, tables: Tables) -> None:
    """A layer's mixture of experts by tokens, for each distribution of tokens over experts that was
    measured.
    """
    model, experts = imported.model, imported.model.experts
    assert experts is not None
    bits = model.weight_bits if experts.bits is None else experts.bits
    kind = {
        "hidden_size": model.hidden_size,
        "inter_size": experts.size,
        "topk": experts.per_token,
        "num_experts": experts.count,
        "moe_dtype": EXPERTS.get(bits),
        "moe_tp_size": imported.num_gpus,
        "moe_ep_size": 1,
    }
    try:
        rows = rows_of_kind(tables, "experts", kind)
    except InputError as error:
        imported.notes.append(f"{error}: a roofline stands in for the experts")
        imported.not_measured["experts"] = "roofline"
        imported.add(
            "experts",
            _experts_points(imported, experts),
            "roofline",
        )
        return
    points = points_by(rows, "distribution", "num_tokens")
    imported.add("experts", points, "router and shared experts not included")


def _experts_points(imported: Imported, experts: Experts) -> list[list[Any]]:
    """Points of a roofline, by the share of the data sheet that an H200 reaches."""
    shares = yaml.safe_load(files_of("efficiencies")["h200"].read_text(encoding="utf-8"))
    return [["balanced", n, _experts_us(imported, experts, n, shares)] for n in TOKENS]


def _experts_us(
    imported: Imported, experts: Experts, num_tokens: int, shares: Mapping[str, float]
) -> float:
    """A roofline: the weights of the experts that tokens touch, or the FLOPs of all tokens."""
    model, gpu = imported.model, _sheet(imported)
    touched = experts.count * (1 - (1 - experts.per_token / experts.count) ** num_tokens)
    weights = model.expert_params / imported.num_gpus
    bits = experts.bits or model.weight_bits or 8 * model.dtype_bytes
    read_s = touched * weights * bits / 8 / (gpu.memory_bandwidth * shares["weight_bandwidth"])
    compute_s = (
        2 * num_tokens * experts.per_token * weights / (gpu.fp16_flops * shares["linear_flops"])
    )
    return round(1e6 * max(read_s, compute_s), 3)


def add_states(imported: Imported, tables: Tables) -> None:
    """Gated delta nets, found by the bytes of their state; the states of others are read and
    written by a roofline.
    """
    states = imported.model.states
    assert states is not None
    of_a_sequence = states.state_bytes or states.num_tokens * imported.model.slot_bytes
    bytes_here = of_a_sequence // imported.num_gpus
    rows = tables.get("states")
    if rows is not None:
        rows = _of_state(rows, imported.model, bytes_here)
    if rows is not None and len(rows):
        decodes, prefills = _delta_net_points(rows)
        note = "gated delta net: convolution and recurrence"
    else:
        decodes, prefills = _roofline_points(imported, bytes_here)
        imported.not_measured["state"] = "roofline"
        note = "roofline: the state read and written once; a scan's own time is not in it"
    imported.add("state_decode", decodes, note)
    imported.add("state_prefill", prefills, note)


def _of_state(rows: Any, model: ModelSpec, state_bytes: int) -> Any:
    """The rows of layers as wide as the model's whose state has state_bytes bytes."""
    key, value = (rows[f"num_{name}_heads"] * rows[f"head_{name}_dim"] for name in ("k", "v"))
    values = value * rows["head_k_dim"] + (rows["d_conv"] - 1) * (2 * key + value)
    is_as_wide = rows["d_model"] == model.hidden_size
    return rows[is_as_wide & (values * model.dtype_bytes == state_bytes)]


def _delta_net_points(rows: Any) -> tuple[Points, Points]:
    """Decodes and prefills; each time is that of both kernels, convolution and recurrence."""
    case = ["phase", "batch_size", "seq_len"]
    of_kernel = rows.groupby([*case, "kernel_source"], as_index=False)["latency"].median()
    of_both = of_kernel.groupby(case, as_index=False)["latency"].agg(["sum", "count"])
    of_both = of_both[of_both["count"] == 2].rename(columns={"sum": "latency"})
    decode, prefill = (of_both[of_both["phase"] == phase] for phase in ("generation", "context"))
    decodes = points_by(decode, "batch_size")
    prefills = points_by(prefill.assign(past=0), "batch_size", "seq_len", "past")
    return decodes, prefills


def _roofline_points(imported: Imported, state_bytes: int) -> tuple[Points, Points]:
    """Decodes and prefills by the memory's bandwidth: a state is read and written, a tail of tokens
    read.
    """
    states = imported.model.states
    us_of_bandwidth = 1e6 if states is not None and states.num_tokens else 2e6
    us = round(us_of_bandwidth * state_bytes / _sheet(imported).memory_bandwidth, 3)
    decodes = [[n, n * us] for n in (1, 1024)]
    prefills = [[1, new, 0, us] for new in (1, imported.model.max_len)]
    return decodes, prefills


def _sheet(imported: Imported) -> GpuSpec:
    if imported.gpu is None:
        raise InputError(
            key=str(imported.device),
            problem="there is no data sheet of it, which a roofline needs",
            remedy="name one by --gpu",
        )
    return imported.gpu
