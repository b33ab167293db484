"""Logged start-ups of vLLM's server: a folder of logs, of tables, or of both.

A log is the text of one start-up at VLLM_LOGGING_LEVEL=DEBUG, with its command in a line (`vllm
serve ...`) and the line "Memory profiling takes ...". A table is a CSV with a row for each start-up
and the columns of COLUMNS, and those of LIMITS where they are not vLLM's defaults on a large GPU.
"""

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from testbed.core.errors import InputError
from testbed.core.specs import GpuSpec, ModelSpec
from testbed.experiments.vllm_server.command import Command, read_command
from testbed.experiments.vllm_server.memory import Limits
from testbed.experiments.vllm_server.named import gpu_named
from testbed.experiments.vllm_server.option_table import options_of
from testbed.experiments.vllm_server.server import sized_server

COLUMNS = (
    "model",
    "tp",
    "max_model_len",
    "kv_cache_dtype",
    "gpu_memory_utilization",
    "logged_weights_gib",
    "logged_activation_gib",
    "logged_non_torch_gib",
    "logged_kv_gib",
    "logged_tokens",
)
LIMITS = ("max_num_seqs", "max_num_batched_tokens")
TERMS = ("weights", "activation", "non_torch", "kv")
COMMAND = re.compile(r"vllm serve .*")
PROFILED = re.compile(
    r"torch peak memory increase: (?P<activation>[\d.]+) ?GiB; non-torch forward increase memory: "
    r"(?P<non_torch>[\d.]+) ?GiB; weights memory: (?P<weights>[\d.]+) ?GiB"
)
KV_MEMORY = re.compile(r"Available KV cache memory: (?P<kv>-?[\d.]+) GiB")
KV_TOKENS = re.compile(r"GPU KV cache size: (?P<tokens>[\d,]+) tokens")


@dataclass(frozen=True)
class StartUp:
    """A logged start-up, GiB of each GPU; `model` has the types that the server gave it."""

    where: str
    model: ModelSpec
    gpu: GpuSpec
    limits: Limits
    utilization: float
    weights: float
    activation: float
    non_torch: float
    kv_cache: float
    tokens: int


def start_ups_of(folder: Path, gpu: str) -> list[StartUp]:
    """The start-ups of a folder, all on GPUs of one name. Raises InputError where there are none,
    and for a log or a row that cannot be read.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder (give one with logs of vLLM's start-ups)")
    found = [start_up for path in sorted(folder.glob("*.csv")) for start_up in _rows(path, gpu)]
    found += [_of_log(path, gpu) for path in sorted(folder.glob("*.log"))]
    if not found:
        raise InputError(f"{folder}: has no *.log and no *.csv of start-ups")
    return found


def _rows(path: Path, gpu: str) -> Iterator[StartUp]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    missing = [name for name in COLUMNS if not rows or name not in rows[0]]
    if missing:
        raise InputError(f"{path}: has no column {', '.join(missing)}")
    for number, row in enumerate(rows, start=2):
        where = f"{path}:{number}"
        try:
            yield _of_row(row, where, gpu)
        except ValueError as error:  # an InputError is one
            raise InputError(f"{where}: {error}") from None


def _of_row(row: Mapping[str, str], where: str, gpu: str) -> StartUp:
    values = {
        "--tensor-parallel-size": row["tp"],
        "--max-model-len": row["max_model_len"],
        "--kv-cache-dtype": row["kv_cache_dtype"],
        "--gpu-memory-utilization": row["gpu_memory_utilization"],
    }
    given = {f"--{name.replace('_', '-')}": row[name] for name in LIMITS if row.get(name)}
    values |= given
    command = Command(row["model"], values, options_of(values))
    logged = {name: float(row[f"logged_{name}_gib"]) for name in TERMS}
    return _start_up(command, where, gpu, logged, int(row["logged_tokens"]))


def _of_log(path: Path, gpu: str) -> StartUp:
    text = path.read_text(encoding="utf-8", errors="replace")
    found = {pattern: pattern.search(text) for pattern in (COMMAND, PROFILED, KV_MEMORY, KV_TOKENS)}
    command, profiled, kv_memory, kv_tokens = found.values()
    if not (command and profiled and kv_memory and kv_tokens):
        lines = (
            "vllm serve ...",
            "Memory profiling takes ...",
            "Available KV cache memory",
            "size",
        )
        absent = next(line for line, match in zip(lines, found.values(), strict=True) if not match)
        raise InputError(
            f"{path}: has no line {absent!r} (log a start-up at VLLM_LOGGING_LEVEL=DEBUG, below "
            "its command)"
        )
    logged = {name: float(value) for name, value in profiled.groupdict().items()}
    logged["kv"] = float(kv_memory["kv"])
    tokens = int(kv_tokens["tokens"].replace(",", ""))
    try:
        return _start_up(read_command(command[0].strip()), str(path), gpu, logged, tokens)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _start_up(
    command: Command, where: str, gpu: str, logged: Mapping[str, float], tokens: int
) -> StartUp:
    model, limits, utilization = sized_server(command, gpu)
    return StartUp(
        where,
        model,
        gpu_named(gpu),
        limits,
        utilization,
        logged["weights"],
        logged["activation"],
        logged["non_torch"],
        logged["kv"],
        tokens,
    )
