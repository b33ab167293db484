"""The values of a config that no class checks: options of the run, and numbers that make no sense anywhere."""

import math
from collections.abc import Mapping
from typing import Any

from experiments.runs.identity import SIMULATOR
from testbed.core.errors import InputError

LAST_S = 9_000_000  # s; whole picoseconds in 64 bits end at 9.2 million, and what has arrived must still be served
ABOVE_ZERO = {
    "attention_bandwidth", "block_size", "fp16_flops", "host_bandwidth", "prefill_flops",
    "link_bandwidth", "max_batch_size", "max_len", "max_num_batched_tokens", "max_num_seqs", "max_padded_len",
    "memory_bandwidth", "num_blocks", "num_gpus", "num_seqs", "stop_at_latency", "num_layers", "hidden_size",
    "num_heads", "num_kv_heads", "head_size", "ffn_size", "ffn_matrices", "vocab_size", "dtype_bytes", "memory_bytes",
}  # fmt: skip


def check_options(values: Mapping[str, Any]) -> None:
    """The values that belong to no class."""
    options = {**values, **values["workload"]}
    for key, wanted in (("seed", int), ("num_seqs", int), ("beam", bool), ("fast_forward", bool)):
        if type(options[key]) is not wanted:
            kind = "a whole number" if wanted is int else "true or false"
            raise InputError(f"{key} is {options[key]!r}; it must be {kind}")
    if type(options["swap_space_gib"]) not in (int, float):
        raise InputError(f"swap_space_gib is {options['swap_space_gib']!r}; it must be a number of GiB")
    if options["outputs"] not in ("full", "summary"):
        raise InputError(f"outputs is {options['outputs']!r}; it must be full or summary")
    if type(options["stop_at_latency"]) not in (int, float, type(None)):
        raise InputError(f"stop_at_latency is {options['stop_at_latency']!r}; it must be a number of s/token, or null")
    if type(options["max_len"]) not in (int, type(None)):
        raise InputError(f"workload.max_len is {options['max_len']!r}; it must be a number of tokens, or null")


def check_values(values: Mapping[str, Any], where: str = "") -> None:
    """No number of a config may be negative or not finite, and some must be above zero; plug-ins check their own."""
    if str(values.get("_target_", "testbed")).partition(".")[0] not in SIMULATOR:
        return
    for key, value in values.items():
        name = f"{where}{key}"
        if isinstance(value, Mapping):
            check_values(value, f"{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            if not math.isfinite(value) or value < 0:
                raise InputError(f"{name} is {value}; it must be a finite number, at least 0")
            if key in ABOVE_ZERO and value == 0:
                raise InputError(f"{name} is 0; it must be above 0")
            if key == "duration_s" and value > LAST_S:
                raise InputError(f"{name} is {value}; time ends at {LAST_S:,} s, choose less")
