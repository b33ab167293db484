"""Translates a command of vLLM's server into overrides for the same pool, limits and rules."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from testbed.core.errors import InputError
from testbed.core.model_files import model_names
from testbed.core.shapes import read_model
from testbed.core.specs import GIB, ModelSpec
from testbed.experiments.runs.notes import OnNote, print_note
from testbed.experiments.runs.taken_values import BLOCK_SIZE as BLOCK_SIZE_KEY
from testbed.experiments.runs.taken_values import not_taken, policy_takes
from testbed.experiments.runs.words import chosen, user_folders
from testbed.experiments.vllm_server.answer import (
    NO_WATERMARK,
    WITH_WATERMARK,
    kv_lines,
    replica_lines,
    rule_lines,
)
from testbed.experiments.vllm_server.configured import pool_gib
from testbed.experiments.vllm_server.draft_notes import draft_notes
from testbed.experiments.vllm_server.expected_error import with_margin
from testbed.experiments.vllm_server.named import model_named
from testbed.experiments.vllm_server.named_server import PARALLELISM, server_of, started
from testbed.experiments.vllm_server.overriding import displaced, merged
from testbed.experiments.vllm_server.release_words import (
    SYSTEM,
    release_chosen,
    words_of_groups,
    words_of_release,
)
from testbed.experiments.vllm_server.stand_in import in_place, with_stand_in
from testbed.run.override_words import displaced_words, key_of
from testbed.vllm.attention_backends import BLOCK_SIZE
from testbed.vllm.command import FLAG, OFF, SERVE, Command, read_command
from testbed.vllm.connector import LowerCache
from testbed.vllm.pool_sizing import BLOCKS
from testbed.vllm.releases import Release
from testbed.vllm.server import NO_WINDOWS, REPLICAS, Server, plans_ahead

HALF_BYTES = 2  # of a weight, float16 or bfloat16
NAMING = ("model", "system")  # what overrides choose of these is said apart
THRESHOLD = "--long-prefill-token-threshold"


def expand(command: str | None, others: Sequence[str], on_note: OnNote = print_note) -> list[str]:
    """The overrides that `command` stands for, followed by `others`, which take precedence. Without
    a command: the others alone.

    Notes are the overrides, the lines that vLLM itself would log about its pool and its
    rules, and the options that were read and change nothing.

    Raises:
        InputError: the command names no GPU or no model whose shape is known, an option of it
            changes the result and is not modelled, or vLLM refuses such a server.
    """
    if command is None:
        return [*others]
    server, command_of_all, taken = served(command, others)
    choices = chosen(others)
    _check_policy(server, choices)
    in_blocks = policy_takes(choices, BLOCK_SIZE_KEY)
    words = overrides_of(server, command_of_all, user_folders(others), in_blocks=in_blocks)
    if choices.get("policy") in WITH_WATERMARK and NO_WATERMARK not in words:
        words.append(NO_WATERMARK)
    left_out = [word for word in not_taken(words, choices) if key_of(word) not in choices]
    from_user = [word for word in others if key_of(word) not in taken]
    kept = {key_of(word) for word in from_user}
    from_command = [word for word in words if key_of(word) not in kept and word not in left_out]
    on_note(f"{SERVE}: {' '.join(from_command)}")
    asked = read_command(command)
    last = {key_of(word): word for word in from_user if key_of(word) not in NAMING}
    replaced = [
        *in_place(asked.model, choices.get("model")),
        *displaced(asked.values, command_of_all.values),
        *displaced_words([*words, *last.values()]),
    ]
    if replaced:
        on_note(f"{SERVE}: {'; '.join(replaced)}")
    if left_out:
        on_note(f"{SERVE}: left out, for {choices['policy']} takes none: {' '.join(left_out)}")
    for line in _start_up_lines(server, choices):
        on_note(f"{SERVE}: {line}")
    for note in server.notes:
        on_note(f"{SERVE}: harmless, ignored: {note}")
    return [*from_command, *from_user]


def _start_up_lines(server: Server, choices: Mapping[str, str]) -> tuple[str, ...]:
    """The lines that vLLM would log about its rules and its pool; then assumptions, those of drafts
    last.
    """
    replicas = replica_lines(int(server.values.get(REPLICAS, 1)))
    drafter = server.speculative
    of_drafts = () if drafter is None else draft_notes(drafter, choices)
    lines = (*rule_lines(server, choices), *replicas, *kv_lines(server))
    remarks = (f"assumed: {remark}" for remark in server.remarks)
    return (*lines, *_small_pool_lines(server), *remarks, *of_drafts)


def _small_pool_lines(server: Server) -> list[str]:
    """The line on given blocks that do not hold the longest sequence, which older releases of vLLM
    start with.
    """
    most = server.model.max_len
    longest = server.pages.longest(server.pool.num_blocks - 1, most)  # one block is null
    if BLOCKS not in server.values or longest == most:
        return []
    return [
        f"{server.pool.num_blocks:,} blocks hold {longest:,} of max_model_len {most:,} tokens: "
        f"vLLM {server.release.number} starts, but longer requests never run, and are rejected "
        "here (give more blocks)"
    ]


class Served(NamedTuple):
    """A server, its command with the values of overrides, and the keys of those that it has taken
    over.
    """

    server: Server
    command: Command
    taken: frozenset[str]


def served(text: str, others: Sequence[str]) -> Served:
    """The server of a command beside overrides; raises InputError as `expand` does."""
    choices = chosen(others)
    asked = with_stand_in(read_command(text), choices.get("model"), user_folders(others))
    command, taken = merged(asked, choices)
    start = _starter(others)
    server = started(
        lambda: start(command),
        lambda degree: with_margin(start(command.updated(PARALLELISM, str(degree)))),
    )
    return Served(server, command, taken)


def own_blocks(of: Served, others: Sequence[str]) -> int:
    """Blocks of the pool that the server would compute if nothing gave their number; 0 if it would
    not start.
    """
    try:
        return _starter(others)(of.command.without(BLOCKS)).pool.num_blocks
    except InputError:
        return 0


def _starter(others: Sequence[str]) -> Callable[[Command], Server]:
    """The server of a command on the GPU and of the release that the overrides choose."""
    choices = chosen(others)
    release = release_chosen({"system": SYSTEM} | choices)
    if release is None:
        raise InputError(
            key="+system",
            value=choices["system"],
            problem="is not vLLM's server",
            remedy=f"leave it out, or +system={SYSTEM}",
        )
    return partial(
        server_of, gpu=_gpu_chosen(choices), folders=user_folders(others), release=release
    )


def _gpu_chosen(choices: Mapping[str, str]) -> str | None:
    """The GPU of gpu=NAME or server=NAME-xN; None if neither names one."""
    server = choices.get("server", "")
    of_server = "" if server.startswith("of-") else server.partition("-x")[0]  # of-MODEL
    return choices.get("gpu", of_server) or None


def _check_policy(server: Server, choices: Mapping[str, str]) -> None:
    """Raise InputError for a policy that divides the pool otherwise than the server's manager."""
    policy = choices.get("policy", "")
    if server.pages.is_grouped and policy and not policy.startswith("grouped"):
        raise InputError(
            key="policy",
            value=policy,
            problem=(
                f"beside {FLAG}: the server's pool is shared by groups of layers, which this "
                "policy has not"
            ),
            remedy="policy=grouped_caching_v1 or policy=grouped",
        )


def overrides_of(
    server: Server, command: Command, folders: Sequence[Path] = (), *, in_blocks: bool = True
) -> list[str]:
    """The overrides of a server, each a word of the command line. in_blocks: the pool is; without
    it, of a policy that has none, in GiB. folders: of the user's options.
    """
    _check_simulated(server, command, folders)
    option = server.option
    speculative = server.speculative
    return [
        f"model={option}",
        f"+system={SYSTEM}",
        *words_of_release(server.release),
        *_pool_words(server, in_blocks),
        f"server.num_gpus={server.limits.num_gpus}",
        f"scheduler.max_num_batched_tokens={server.limits.max_num_batched_tokens}",
        f"scheduler.max_num_seqs={server.limits.max_num_seqs}",
        f"policy.block_size={server.pages.block_size}",
        *_policy_words(server),
        *model_words(server.model, option, server.cached_bytes),
        *_scheduler_words(server, command.values),
        *(() if speculative is None else speculative.words),
    ]


def _check_simulated(server: Server, command: Command, folders: Sequence[Path]) -> None:
    """Raise InputError for a server that is not simulated."""
    if NO_WINDOWS in server.values and len(model_named(server.option, folders).shape.groups) > 1:
        raise InputError(
            key=f"{SERVE}: {NO_WINDOWS}",
            problem=f"{command.model} without its groups of layers is not simulated",
            remedy="testbed fits says what the server holds",
        )
    if server.limits.num_expert_ranks > 1:
        raise InputError(
            key=f"{SERVE}: {REPLICAS}",
            value=server.limits.num_expert_ranks,
            problem="the ranks of a model with experts step together, which is not simulated",
            remedy="testbed fits says what each holds",
        )
    if server.pages.block_size % BLOCK_SIZE:
        raise InputError(
            key=f"{SERVE}: --block-size",
            value=server.pages.block_size,
            problem="is served by FlexAttention, whose time is not simulated",
            remedy=f"a multiple of {BLOCK_SIZE}",
        )
    if server.model.chunks is not None:
        raise InputError(
            key=f"{SERVE}: model {command.model}",
            problem="has layers of chunked attention, whose cache is not simulated",
            remedy="testbed fits says what the server holds",
        )


def _scheduler_words(server: Server, values: Mapping[str, str]) -> list[str]:
    """Overrides for how requests are scheduled, and for replicas."""
    words = list[str]()
    if THRESHOLD in values:
        words.append(f"scheduler.long_prefill_token_threshold={values[THRESHOLD]}")
    if values.get("--scheduling-policy") == "priority":
        words.append("order=priority")
    words += _replica_words(values, server.release)
    speculation = None if server.speculative is None else server.speculative.speculation
    if not plans_ahead(server.values, speculation):
        words.append("scheduler=vllm_v1")
    words += [f"scheduler.{key}=false" for name, key in SWITCHES.items() if values.get(name) == OFF]
    return words


def model_words(model: ModelSpec, option: str, cached_bytes: int | None) -> list[str]:
    """Overrides for what the command changes of the model that ships under this name. Raises
    InputError for weights of 32 bits: every measured and derived time is of 16 bits. cached_bytes:
    as of Server.
    """
    if model.dtype_bytes > HALF_BYTES:
        raise InputError(
            key="--dtype",
            value="float32",
            problem="the times of 32-bit weights are not modelled",
            remedy="testbed fits says what the server holds",
        )
    words = list[str]()
    shipped_len = read_model(option).max_len if option in model_names() else None
    if model.max_len != shipped_len:
        words += [f"model.max_len={model.max_len}"]
    if model.weight_bits is not None:
        words += [f"++model.weight_bits={model.weight_bits:.17g}"]
    if model.fp8_products is not None:
        words += ["++model.fp8_products=true"]
    if model.kv_dtype_bytes is not None:
        words += [f"++model.kv_dtype_bytes={model.kv_dtype_bytes}"]
    elif cached_bytes is not None:
        words += ["++model.kv_dtype_bytes=null"]
    return words


def _replica_words(values: Mapping[str, str], release: Release) -> list[str]:
    """Overrides for data parallelism: independent engines behind vLLM's own balancer."""
    num_replicas = values.get("--data-parallel-size", "1")
    if num_replicas == "1":
        return []
    words = [f"replicas={num_replicas}", "router=vllm_balancer"]
    return [*words, "router.weighs_usage=true"] if release.balances_usage else words


def _pool_words(server: Server, in_blocks: bool) -> list[str]:
    """Overrides for the pool, in blocks or in GiB over all GPUs."""
    if in_blocks and not server.pages.is_grouped:
        return [f"server.num_blocks={server.pool.num_blocks}", "server.kv_memory_gib={}"]
    pool = f"server.kv_memory_gib={{{server.model.name}: {pool_gib(server)!r}}}"
    return [pool, "server.num_blocks=null", "null_blocks=0"]


def _policy_words(server: Server) -> list[str]:
    """Overrides for the policy: as in vLLM's manager, groups of layers if some layers store
    less than all tokens. Without the hybrid manager all of them store all tokens.
    """
    if server.pages.is_grouped:
        return words_of_groups(caches=server.caches_prefixes)
    if not server.caches_prefixes:
        return ["policy=paged", NO_WATERMARK]
    if server.offloading is not None:
        return _offloading_words(server.offloading)
    return ["policy=prefix_caching_v1"] if len(server.model.groups) > 1 else []


def _offloading_words(cache: LowerCache) -> list[str]:
    """Overrides for the cache below the device, of as many blocks as it has."""
    return [
        f"policy={cache.policy}",
        *(f"policy.{name}={json.dumps(value)}" for name, value in cache.parameters.items()),
        "+tier@server.tiers.dram=dram",
        f"server.tiers.dram.size_gib={(cache.num_bytes + 1) / GIB!r}",
    ]


SWITCHES = {
    "--enable-chunked-prefill": "enable_chunked_prefill",
    "--scheduler-reserve-full-isl": "scheduler_reserve_full_isl",
}
