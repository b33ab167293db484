"""Translates a command of vLLM's server into overrides for the same pool, limits and rules."""

import sys
from collections.abc import Mapping, Sequence

from testbed.core.errors import InputError
from testbed.core.model_files import model_names
from testbed.core.shapes import read_model
from testbed.core.specs import GIB, ModelSpec
from testbed.experiments.runs.words import chosen, user_folders
from testbed.experiments.vllm_server.answer import kv_lines, rule_lines
from testbed.experiments.vllm_server.configured import pool_gib
from testbed.experiments.vllm_server.named_server import server_of
from testbed.experiments.vllm_server.release_words import (
    SYSTEM,
    release_chosen,
    words_of_groups,
    words_of_release,
)
from testbed.run.override_words import key_of
from testbed.vllm.command import FLAG, OFF, Command, read_command
from testbed.vllm.offloading import Offloading
from testbed.vllm.option_table import options_of
from testbed.vllm.server import Server, plans_ahead

OPTION_OF_OVERRIDE = {  # overrides that replace the value of an option of the command
    "server.num_gpus": "--tensor-parallel-size",
    "scheduler.max_num_seqs": "--max-num-seqs",
    "scheduler.max_num_batched_tokens": "--max-num-batched-tokens",
    "server.memory_utilization": "--gpu-memory-utilization",
    "policy.block_size": "--block-size",
}


def expand(command: str | None, others: Sequence[str]) -> list[str]:
    """The overrides that `command` stands for, followed by `others`, which take precedence. Without
    a command: the others alone.

    Prints on stderr the overrides, the lines that vLLM itself would log about its pool and its
    rules, and the options that were read and change nothing.

    Raises:
        InputError: the command names no GPU or no model whose shape is known, an option of it
            changes the result and is not modelled, or vLLM refuses such a server.
    """
    if command is None:
        return [*others]
    choices = chosen(others)
    merged = _with_overrides(read_command(command), choices)
    gpu = choices.get("gpu", choices.get("server", "").partition("-x")[0])
    release = release_chosen({"system": SYSTEM} | choices)
    if release is None:
        raise InputError(
            f"+system={choices['system']}: is not vLLM's server (leave it out, or +system={SYSTEM})"
        )
    server = server_of(merged, gpu, user_folders(others), release=release)
    words = overrides_of(server, merged, choices)
    print(f"testbed: note: {FLAG}: {' '.join(words)}", file=sys.stderr)
    speculative = server.speculative
    draft_notes = () if speculative is None else (speculative.note,)
    for line in (*rule_lines(server), *kv_lines(server), *draft_notes):
        print(f"testbed: note: {FLAG}: {line}", file=sys.stderr)
    for note in server.notes:
        print(f"testbed: note: {FLAG}: harmless, ignored: {note}", file=sys.stderr)
    from_command = [word for word in words if key_of(word) not in choices]
    from_user = [word for word in others if key_of(word) != "server.memory_utilization"]
    return [*from_command, *from_user]


def _with_overrides(command: Command, choices: dict[str, str]) -> Command:
    """The command, in which values of the user's overrides replace its own."""
    values = dict(command.values)
    for key, option in OPTION_OF_OVERRIDE.items():
        if key in choices:
            values[option] = choices[key]
    _, times, count = choices.get("server", "").partition("-x")
    if times and "--tensor-parallel-size" not in values:
        values["--tensor-parallel-size"] = count
    model = choices.get("model", command.model)
    return Command(model, values, {**options_of(values), **command.options}, command.environment)


def overrides_of(server: Server, command: Command, choices: dict[str, str]) -> list[str]:
    """The overrides of a server, each a word of the command line."""
    if server.option is None:
        raise InputError(
            f"{FLAG}: model {command.model}: is a config.json, which `testbed fits` reads; to "
            "simulate it, testbed import model its config.json, and add --config-dir . model=NAME"
        )
    model, limits, values = server.model, server.limits, command.values
    if model.chunks is not None:
        raise InputError(
            f"{FLAG}: model {command.model}: has layers of chunked attention, whose cache is not "
            "simulated (testbed fits says what the server holds)"
        )
    words = [
        f"model={server.option}",
        f"+system={SYSTEM}",
        *words_of_release(server.release),
        *_pool_words(server, choices),
    ]
    words += [f"server.num_gpus={limits.num_gpus}"]
    words += [f"scheduler.max_num_batched_tokens={limits.max_num_batched_tokens}"]
    words += [f"scheduler.max_num_seqs={limits.max_num_seqs}"]
    speculative = server.speculative
    is_async = _plans_ahead(server)
    words += [f"policy.block_size={server.block_size}"]
    words += _policy_words(server)
    words += _model_words(model, server.option)
    if "--max-model-len" in values:
        words += [f"workload.max_len={model.max_len}"]
    if "--long-prefill-token-threshold" in values:
        threshold = values["--long-prefill-token-threshold"]
        words += [f"scheduler.long_prefill_token_threshold={threshold}"]
    words += _replica_words(values)
    if not is_async:
        words += ["scheduler=vllm_v1"]
    if speculative is not None:
        words += speculative.words
    for option, key in SWITCHES.items():
        if values.get(option) == OFF:
            words += [f"scheduler.{key}=false"]
    return words


def _plans_ahead(server: Server) -> bool:
    """Whether the server's scheduler is asynchronous; raises InputError where its drafts are too,
    which no scheduler here does with those that a CPU makes.
    """
    speculation = None if server.speculative is None else server.speculative.speculation
    is_async = plans_ahead(server.values, speculation, server.release)
    if is_async and speculation is not None and not speculation.drafts_on_gpu:
        raise InputError(
            f"{FLAG}: --speculative-config: vLLM {server.release.number} schedules n-gram drafts "
            "asynchronously, which is not simulated (--no-async-scheduling, here and there)"
        )
    return is_async


def _model_words(model: ModelSpec, option: str) -> list[str]:
    """Overrides for what the command changes of the model that ships under this name."""
    words = list[str]()
    if model.max_len != _shipped_len(option):
        words += [f"model.max_len={model.max_len}"]
    if model.weight_bits is not None:
        words += [f"++model.weight_bits={model.weight_bits:g}"]
    if model.fp8_products is not None:
        words += ["++model.fp8_products=true"]
    if model.kv_dtype_bytes is not None:
        words += [f"++model.kv_dtype_bytes={model.kv_dtype_bytes}"]
    return words


def _replica_words(values: Mapping[str, str]) -> list[str]:
    """Overrides for data parallelism: independent engines behind vLLM's own balancer."""
    num_replicas = values.get("--data-parallel-size", "1")
    return [] if num_replicas == "1" else [f"replicas={num_replicas}", "router=vllm_balancer"]


def _shipped_len(option: str) -> int | None:
    return read_model(option).max_len if option in model_names() else None


def _pool_words(server: Server, choices: dict[str, str]) -> list[str]:
    """Overrides for the pool, in blocks or in GiB over all GPUs, unless the user gives it."""
    if any(key.startswith(("server.num_blocks", "server.kv_memory_gib")) for key in choices):
        return []
    if not server.pages.is_grouped:
        return [f"server.num_blocks={server.num_blocks}", "server.kv_memory_gib={}"]
    pool = f"server.kv_memory_gib={{{server.model.name}: {pool_gib(server)!r}}}"
    return [pool, "server.num_blocks=null", "null_blocks=0"]


def _policy_words(server: Server) -> list[str]:
    """Overrides for the policy: as in vLLM's manager, groups of layers where some layers store
    less than all tokens. Without the hybrid manager all of them store all tokens.
    """
    if server.pages.is_grouped:
        return words_of_groups(caches=server.caches_prefixes)
    if not server.caches_prefixes:
        return ["policy=paged", "policy.watermark=0"]
    if server.offloading is not None:
        return _offloading_words(server.offloading)
    return ["policy=prefix_caching_v1"] if len(server.model.groups) > 1 else []


def _offloading_words(offloading: Offloading) -> list[str]:
    """Overrides for vLLM's cache below the device, of as many blocks as it has."""
    size_gib = (offloading.num_bytes + 1) / GIB
    prompt_only = str(offloading.prompt_only).lower()
    return [
        "policy=vllm_offloading",
        f"policy.offload_prompt_only={prompt_only}",
        "+tier@server.tiers.dram=dram",
        f"server.tiers.dram.size_gib={size_gib!r}",
    ]


SWITCHES = {
    "--enable-chunked-prefill": "enable_chunked_prefill",
    "--scheduler-reserve-full-isl": "scheduler_reserve_full_isl",
}
