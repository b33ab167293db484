"""Overrides beside a command: the server is built with those that an option stands for, and those
that would make the pool another than the lines which vLLM logs are refused.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import yaml

from testbed.core.errors import InputError
from testbed.core.specs import GIB
from testbed.run.override_words import key_of
from testbed.vllm.command import FLAG, OFF, Command
from testbed.vllm.option_table import options_of
from testbed.vllm.pool_sizing import BLOCKS, BYTES
from testbed.vllm.server import REPLICAS

TENSOR_PARALLEL = "--tensor-parallel-size"
POOL_GIB = "server.kv_memory_gib"
OPTION_OF = {  # overrides that replace the value of an option of the command
    "server.num_gpus": TENSOR_PARALLEL,
    "scheduler.max_num_seqs": "--max-num-seqs",
    "scheduler.max_num_batched_tokens": "--max-num-batched-tokens",
    "server.memory_utilization": "--gpu-memory-utilization",
    "policy.block_size": "--block-size",
    "model.max_len": "--max-model-len",
    "server.num_blocks": BLOCKS,
    "scheduler.enable_chunked_prefill": "--enable-chunked-prefill",
    "scheduler.scheduler_reserve_full_isl": "--scheduler-reserve-full-isl",
}
SCHEDULERS = {"vllm_v1": OFF, "vllm_v1_async": "true"}  # --async-scheduling
CACHE_TYPES = {"1": "fp8", "2": "auto", "null": "auto"}  # of model.kv_dtype_bytes
OF_SHAPE = "give a config.json of that shape: vllm serve FOLDER"
FIXED = {  # what decides the pool, and no option of the command may say otherwise
    "null_blocks": "vLLM keeps one null block (leave it out)",
    "server.workspace_gib": "the command's memory is that of vLLM (leave it out)",
    "server.gpu.memory_bytes": "the pool is that of the named GPU (give gpu=FILE with its memory)",
    "server.gpu.name": "the pool is that of the named GPU (gpu=NAME)",
    "server.gpu.device": "the pool is that of the named GPU (gpu=NAME)",
}
DRAFTER = ("speculation", "speculation.num_drafts", "speculation.drafter", "speculation.num_layers")


class Merged(NamedTuple):
    """A command with the values of overrides, and the keys of those that it has taken over."""

    command: Command
    taken: frozenset[str]


def merged(command: Command, choices: Mapping[str, str]) -> Merged:
    """The command in which the values of overrides replace its own. Raises InputError for an
    override that changes the pool and that no option stands for.
    """
    _check_fixed(choices)
    given = {key: value for key, value in choices.items() if not key.startswith("~")}
    values = replaced_values(command.values, given, OPTION_OF, TENSOR_PARALLEL)
    if BLOCKS in values and "server.num_blocks" in given:
        values.pop(BYTES, None)
    if given.get("scheduler") in SCHEDULERS:
        values["--async-scheduling"] = SCHEDULERS[given["scheduler"]]
    if "model.kv_dtype_bytes" in given:
        values["--kv-cache-dtype"] = _cache_type(given["model.kv_dtype_bytes"])
    taken = {*OPTION_OF, "model.kv_dtype_bytes"}
    taken |= {key for key in choices if key.lstrip("~").startswith(POOL_GIB)}
    if REPLICAS in values and "replicas" in given:  # engines behind vLLM's balancer
        values[REPLICAS] = "1" if given["replicas"] == "null" else given["replicas"]
        taken.add("replicas")
    pool = given.get(POOL_GIB)
    if pool is not None and (gib := _pool_gib(pool)) is not None:
        values[BYTES] = str(int(gib * GIB) // int(values.get(TENSOR_PARALLEL, "1")))
    options = {**options_of(values), **command.options}
    return Merged(Command(command.model, values, options, command.environment), frozenset(taken))


def replaced_values(
    values: Mapping[str, str],
    given: Mapping[str, str],
    options: Mapping[str, str],
    num_gpus: str,
) -> dict[str, str]:
    """The values of a command's options, in which those of overrides replace its own.

    options: by override. num_gpus: the option that server=GPU-xN gives, as server.num_gpus does.
    """
    replaced = dict(values)
    for key, option in options.items():
        if given.get(key, "null") != "null":
            replaced[option] = given[key]
    _, times, count = given.get("server", "").partition("-x")
    if times and given.get("server.num_gpus", "null") == "null":
        replaced[num_gpus] = count
    return replaced


def displaced(own: Mapping[str, str], replaced: Mapping[str, str]) -> list[str]:
    """The notes on values of a command's options that overrides have replaced or taken out."""
    return [
        f"{option} {replaced.get(option, 'left out')} in place of {value} of the command"
        for option, value in own.items()
        if replaced.get(option) != value
    ]


def _check_fixed(choices: Mapping[str, str]) -> None:
    for key, value in choices.items():
        plain = key_of(key)
        problem = FIXED.get(plain)
        if plain.startswith("model.") and plain not in (
            "model.max_len",
            "model.kv_dtype_bytes",
            "model.name",
        ):
            problem = f"the command's server has the shape of its model ({OF_SHAPE})"
        if plain in DRAFTER:
            problem = "decides the pages (give --speculative-config in the command)"
        if problem is not None:
            raise InputError(key=plain, value=value, problem=f"beside {FLAG}: {problem}")


def _cache_type(value: str) -> str:
    if value not in CACHE_TYPES:
        raise InputError(
            key="model.kv_dtype_bytes",
            value=value,
            problem=f"beside {FLAG}: none of {', '.join(CACHE_TYPES)}",
            remedy="--kv-cache-dtype in the command",
        )
    return CACHE_TYPES[value]


def _pool_gib(text: str) -> float | None:
    """GiB over all GPUs that an override gives; None if it gives none."""
    values: Any = yaml.safe_load(text)
    if not values:
        return None
    numbers = list(values.values()) if isinstance(values, dict) else [values]
    if len(numbers) != 1 or isinstance(numbers[0], bool) or not isinstance(numbers[0], int | float):
        raise InputError(
            key=POOL_GIB,
            value=text,
            problem=(
                f"beside {FLAG}: must be one pool, of the command's model ({BYTES} in the command)"
            ),
        )
    return float(numbers[0])
