"""Logged start-ups of vLLM's server: a folder of logs, of tables, or of both.

A log is the text of one start-up at VLLM_LOGGING_LEVEL=DEBUG, with its command in a line (`vllm
serve ...`) and the line "Memory profiling takes ...". A table is a CSV with a row for each start-up
and the columns of LOGGED, and those of OPTIONS if they are not vLLM's defaults. Other tables in
the folder have no column logged_*.
"""

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from testbed.core.errors import InputError
from testbed.core.specs import GpuSpec, ModelSpec
from testbed.experiments.vllm_server.named import gpu_named, model_named
from testbed.experiments.vllm_server.named_server import sized_server
from testbed.vllm.command import Command, read_command
from testbed.vllm.limits import Limits
from testbed.vllm.option_table import options_of

LOGGED = (
    "logged_weights_gib",
    "logged_activation_gib",
    "logged_non_torch_gib",
    "logged_kv_gib",
    "logged_tokens",
)
OPTIONS = {
    "tp": "--tensor-parallel-size",
    "max_model_len": "--max-model-len",
    "kv_cache_dtype": "--kv-cache-dtype",
    "gpu_memory_utilization": "--gpu-memory-utilization",
    "max_num_seqs": "--max-num-seqs",
    "max_num_batched_tokens": "--max-num-batched-tokens",
}
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
    """A logged start-up, GiB of each GPU; `model` has the types that the server gave it, and the
    longest sequence that is served of its num_positions.
    """

    where: str
    model: ModelSpec
    num_positions: int
    gpu: GpuSpec
    limits: Limits
    utilization: float
    weights: float
    activation: float
    non_torch: float
    kv_cache: float
    tokens: int


def start_ups_of(folder: Path, gpu: str, model: str | None = None) -> list[StartUp]:
    """The start-ups of a folder, all on GPUs of one name; `model` is that of tables without such a
    column. Raises InputError if there are none, and for a log or a row that cannot be read.
    """
    if not folder.is_dir():
        raise InputError(
            key=folder, problem="no such folder", remedy="give one with logs of vLLM's start-ups"
        )
    tables, logs = sorted(folder.glob("*.csv")), sorted(folder.glob("*.log"))
    start_ups = [start_up for path in tables for start_up in _rows(path, gpu, model)]
    if not start_ups:  # a table has its logs beside it
        start_ups = [_of_log(path, gpu) for path in logs]
    if not start_ups:
        raise InputError(key=folder, problem="has no *.log and no *.csv of start-ups")
    return start_ups


def _rows(path: Path, gpu: str, model: str | None) -> Iterator[StartUp]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    columns = list(rows[0]) if rows else []
    if not any(name.startswith("logged_") for name in columns):
        return
    missing = [name for name in LOGGED if name not in columns]
    if missing:
        raise InputError(key=path, problem=f"has no column {', '.join(missing)}")
    if "model" not in columns and model is None:
        raise InputError(key=path, problem="has no column model", remedy="give --model NAME")
    for number, row in enumerate(rows, start=2):
        where = f"{path}:{number}"
        try:
            yield _of_row({"model": model or "", **row}, where, gpu)
        except InputError as error:
            raise error.within(where) from None
        except ValueError as error:
            raise InputError(key=where, problem=error) from None


def _of_row(row: Mapping[str, str], where: str, gpu: str) -> StartUp:
    values = {option: row[name] for name, option in OPTIONS.items() if row.get(name)}
    command = Command(row["model"], values, options_of(values))
    logged = {name: float(row[f"logged_{name}_gib"]) for name in TERMS}
    return _start_up(command, where, gpu, logged, int(row["logged_tokens"]))


def _of_log(path: Path, gpu: str) -> StartUp:
    text = path.read_text(encoding="utf-8", errors="replace")
    matches = {
        pattern: pattern.search(text) for pattern in (COMMAND, PROFILED, KV_MEMORY, KV_TOKENS)
    }
    command, profiled, kv_memory, kv_tokens = matches.values()
    if not (command and profiled and kv_memory and kv_tokens):
        lines = (
            "vllm serve ...",
            "Memory profiling takes ...",
            "Available KV cache memory",
            "size",
        )
        absent = next(
            line for line, match in zip(lines, matches.values(), strict=True) if not match
        )
        raise InputError(
            key=path,
            problem=f"has no line {absent!r}",
            remedy="log a start-up at VLLM_LOGGING_LEVEL=DEBUG, below its command",
        )
    logged = {name: float(value) for name, value in profiled.groupdict().items()}
    logged["kv"] = float(kv_memory["kv"])
    tokens = int(kv_tokens["tokens"].replace(",", ""))
    try:
        return _start_up(read_command(command[0].strip()), str(path), gpu, logged, tokens)
    except InputError as error:
        raise error.within(path) from None


def _start_up(
    command: Command, where: str, gpu: str, logged: Mapping[str, float], tokens: int
) -> StartUp:
    model, limits, utilization = sized_server(command, gpu)
    return StartUp(
        where=where,
        model=model,
        num_positions=model_named(command.model).shape.max_len,
        gpu=gpu_named(gpu),
        limits=limits,
        utilization=utilization,
        weights=logged["weights"],
        activation=logged["activation"],
        non_torch=logged["non_torch"],
        kv_cache=logged["kv"],
        tokens=tokens,
    )
