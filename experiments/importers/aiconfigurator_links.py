"""AIConfigurator's all-reduces, milliseconds by number of elements: vLLM's own, and NCCL's."""

from pathlib import Path
from typing import Any

from testbed.core.errors import InputError

BYTES = 2  # of an element, bfloat16
US_PER_MS = 1000.0
NCCL = "comm/nccl/*/nccl_perf.parquet"


def all_reduce_points(table: Any, num_gpus: int, notes: list[str]) -> list[list[float]]:
    """(num_gpus, bytes, microseconds); those launched one by one are a floor of launches, so CUDA graphs' are taken."""
    if table is None:
        raise InputError("no table of vLLM's all-reduces; import with --tensor-parallel 1, or add the table")
    rows = table[table["backend"] == "vllm_graph"]
    known = sorted({int(n) for n in rows["num_gpus"]})
    chosen = max((n for n in known if n <= num_gpus), default=known[0])
    if chosen != num_gpus:
        notes.append(f"outside the grid: all-reduce over {num_gpus} GPUs, measured were {known}; read as {chosen}")
    us = rows[rows["num_gpus"] == chosen].groupby("message_size")["latency"].median() * US_PER_MS
    return [[chosen, int(size) * BYTES, round(float(time), 3)] for size, time in us.items()]


def nccl_points(folder: Path, num_gpus: int) -> list[list[float]]:
    """(num_gpus, bytes, microseconds) of NCCL, which systems before vLLM's own all-reduce used."""
    import pandas as pd

    paths = sorted(folder.glob(NCCL))
    if not paths:
        raise InputError(f"{folder}: no {NCCL}; add AIConfigurator's table of NCCL")
    table = pd.read_parquet(paths[-1])
    rows = table[(table["op_name"] == "all_reduce") & (table["nccl_dtype"] == "half") & (table["num_gpus"] == num_gpus)]
    if not len(rows):
        raise InputError(
            f"{paths[-1]}: no all-reduce over {num_gpus} GPUs; measured were {sorted(set(table['num_gpus']))}"
        )
    us = rows.groupby("message_size")["latency"].median() * US_PER_MS
    return [[num_gpus, int(size) * BYTES, round(float(time), 3)] for size, time in us.items()]
