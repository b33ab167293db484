"""The server of a log: a config with the KV blocks that the log's folder records.

`doubts` reports why the log itself may be wrong.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from testbed.core.errors import InputError
from testbed.core.model_files import model_names
from testbed.core.request import Column
from testbed.core.specs import GpuSpec
from testbed.cost.profile import read_profile
from testbed.experiments.real.importers.known_shapes import gpu_of_device
from testbed.experiments.real.validation.log_replay import PROFILE_COST
from testbed.experiments.runs.model_naming import name_of
from testbed.experiments.runs.words import chosen
from testbed.memory.groups.grouped import Grouped
from testbed.run.config import RunConfig, ServerConfig, defaults_of
from testbed.run.machine import block_size_of
from testbed.run.parts import Part, locate
from testbed.traces.vllm_log import Times, VllmLog

RECURRING = 0.9  # share of prompts that must be as long as those of one period before
FEWEST_LENGTHS = 8  # different lengths in a period; a benchmark of one length always recurs
IMPOSSIBLE = 0.02  # share of the requests from which impossible lengths are reported
LIMITS = ("max_num_seqs", "max_num_batched_tokens")
CACHING = "enable_prefix_caching"
POOL = ("server.num_blocks", "server.kv_memory_gib")


def high_water(log: VllmLog, block_size: int) -> int:
    """The most blocks of requests between their first and their last token.

    The sum is largest at a first token or just before an end, so only these moments are looked at.
    A request grows by a token a step. Prompts in prefill count nothing, and a shared block counts
    once for each request.
    """
    times, prompts = log.times, log.read().prompt_len
    moments = np.unique(
        np.concatenate([times.first_token_s, np.nextafter(times.finish_s, -np.inf)])
    )
    levels = []
    for moment in moments:
        here = (times.first_token_s <= moment) & (moment < times.finish_s)
        first, finish, steps = (
            times.first_token_s[here],
            times.finish_s[here],
            times.output_len[here] - 1,
        )
        written = np.floor((moment - first) / (finish - first) * steps)
        levels.append(int(np.ceil((prompts[here] + 1 + written) / block_size).sum()))
    return max(levels)


def doubts(log: VllmLog, config: RunConfig) -> Iterator[str]:
    """Remarks on the log.

    Raises InputError for a prefix cache if prompts recur whose contents are unknown.
    """
    recurring = recurrence(log.read().prompt_len)
    caches = _finds_prompts(config.policy)
    if log.read().prompt_ids is None:
        if recurring and caches:
            period, share = recurring
            raise InputError(
                key=log.path,
                problem=(
                    f"{share:.0%} of the prompts are as long as the one {period} requests before; "
                    "a prefix cache finds them again if they are the same. Give their contents "
                    "(--workload FILE, ids or hashes), or policy=paged for a server without a "
                    "prefix cache"
                ),
            )
        if caches:
            yield "no token ids (--workload): no prompt finds another's blocks"
    if count := impossible_lengths(log.times):
        yield (
            f"{count:,} of {len(log.times.output_len):,} requests have more output tokens than "
            "another that was decoding all the while: lengths were tokenized again, or one was "
            "preempted, or a step gave several tokens"
        )


def _finds_prompts(policy: Part) -> bool:
    """True if the policy has a prefix cache, to which prompts are published."""
    return callable(getattr(_class_of(policy), "publish", None))


def _class_of(policy: Part) -> type:
    target = locate(policy.target, "policy") if isinstance(policy.target, str) else policy.target
    return target if isinstance(target, type) else type(target)


def recurrence(prompt_len: Column) -> tuple[int, float] | None:
    """The shortest period (requests) after which nearly all lengths recur, and their share.

    None if there is no such period.
    """
    for period in range(FEWEST_LENGTHS, len(prompt_len) // 2 + 1):
        share = float((prompt_len[period:] == prompt_len[:-period]).mean())
        if share >= RECURRING and len(set(prompt_len[:period].tolist())) >= FEWEST_LENGTHS:
            return period, share
    return None


def impossible_lengths(times: Times) -> int:
    """The number of requests with impossible output lengths, or 0 if they are few.

    A request that decodes all the time that another one decodes has a token in each of the other's
    iterations. So the other one cannot have more output tokens.
    """
    num_wrong = 0
    for _, first, finish, length in zip(*times, strict=True):
        decodes_meanwhile = (times.first_token_s <= first) & (times.finish_s >= finish)
        num_wrong += bool((decodes_meanwhile & (times.output_len < length)).any())
    return num_wrong if num_wrong > IMPOSSIBLE * len(times.output_len) else 0


class LoggedServer(NamedTuple):
    """A log's server: a config, and notes on the sources of its values."""

    config: RunConfig
    notes: list[str]


def logged_servers(
    logs: Sequence[VllmLog],
    config: RunConfig,
    pool_is_stated: bool,
) -> list[LoggedServer]:
    """The server of each log, with remarks on the log.

    pool_is_stated: the config's pool is what the user said; else meta.json's takes its place.
    """
    servers = []
    for log in logs:
        here = _stated(log, config) if pool_is_stated else _of_its_record(log, config)
        notes = [
            *here.notes,
            *_other_options(log, config),
            *_ring(config),
            *doubts(log, config),
            *log.remarks,
        ]
        servers.append(LoggedServer(here.config, notes))
    return servers


def states_pool(words: Sequence[str]) -> bool:
    """True if overrides give the size of the pool."""
    return any(key.startswith(POOL) for key in chosen(words))


def _stated(log: VllmLog, config: RunConfig) -> LoggedServer:
    """The server as it is, with a note if meta.json has another number of KV blocks."""
    blocks, simulated = _recorded_blocks(log, config), config.server.num_blocks
    if None in (blocks, simulated) or blocks == simulated:
        return LoggedServer(config, [])
    said = f"meta.json says {blocks:,} KV blocks, simulated with {simulated:,}"
    return LoggedServer(config, [said])


def _of_its_record(log: VllmLog, config: RunConfig) -> LoggedServer:
    """The server with the number of KV blocks in meta.json, or with as many as its memory leaves;
    a pool of groups, whose pages are no blocks of all layers, stays as it is.
    """
    blocks = _recorded_blocks(log, config)
    if blocks is None:
        return _assumed(config)
    if issubclass(_class_of(config.policy), Grouped):
        pool = _source(config.server, config.model.name)
        return LoggedServer(config, [f"meta.json says {blocks:,} KV blocks, simulated with {pool}"])
    return LoggedServer(_with_blocks(config, blocks), [f"meta.json: {blocks:,} KV blocks"])


def _recorded_blocks(log: VllmLog, config: RunConfig) -> int | None:
    """The number of KV blocks in meta.json; None if the file has none.

    Raises InputError if its blocks are of another size than the config's, or no whole number.
    """
    meta, size = log.meta, block_size_of(config.policy)
    resolved = _object(log, "resolved_config")
    places = (meta, meta.get("kv_cache"), meta.get("cache_config"), resolved.get("cache_config"))
    for place in (place for place in places if isinstance(place, Mapping)):
        blocks, logged = (_whole(log, place, key) for key in ("num_gpu_blocks", "block_size"))
        if blocks:
            if logged not in (None, size):
                raise InputError(
                    key=log.path,
                    problem=f"meta.json says block_size {logged}, simulated with {size}",
                    remedy=f"give policy.block_size={logged}",
                )
            return blocks
    return None


def _whole(log: VllmLog, place: Mapping[str, Any], key: str) -> int | None:
    """A whole number of meta.json; None if the file does not say it."""
    value = place.get(key)
    if value is None or (type(value) is int and value >= 0):
        return value
    raise InputError(
        key=f"{log.path}: meta.json: {key}",
        value=repr(value)[:40],
        problem="not a whole number of at least 0",
    )


def _object(log: VllmLog, key: str) -> Mapping[str, Any]:
    """An object of meta.json; empty if the file has none."""
    value = log.meta.get(key) or {}
    if isinstance(value, Mapping):
        return value
    raise InputError(
        key=f"{log.path}: meta.json: {key}", value=repr(value)[:40], problem="is no object"
    )


def _assumed(config: RunConfig) -> LoggedServer:
    """The server with as many blocks as its memory leaves."""
    size, server = block_size_of(config.policy) or 1, config.server
    fitting, source = server.num_blocks, "as testbed fits sizes the pool"
    if fitting is None:
        fitting = server.kv_slots(config.model, size) // size
        source = _source(server, config.model.name)
    taken = f"taken: {fitting:,} of {size} tokens, {source}; say server.num_blocks=N"
    return LoggedServer(config, [f"the log does not say how many KV blocks there were; {taken}"])


def _source(server: ServerConfig, model: str) -> str:
    """The source of a pool that is not given in blocks."""
    if model in server.kv_memory_gib:
        return f"the {server.kv_memory_gib[model]:.2f} GiB of server.kv_memory_gib"
    return f"what {server.memory_utilization:g} of {server.name} leaves"


def _with_blocks(config: RunConfig, blocks: int) -> RunConfig:
    """The config with this number of blocks in place of a share of the memory."""
    usual = defaults_of(ServerConfig)
    computing = {
        name: usual[name] for name in ("memory_utilization", "workspace_gib", "kv_memory_gib")
    }
    return replace(config, server=replace(config.server, num_blocks=blocks, **computing))


class Difference(NamedTuple):
    """A fact or option that a log's meta.json gives another value than the simulation.

    option: the override that gives it the log's value, if there is one.
    """

    logged: str
    simulated: str
    option: str = ""

    def __str__(self) -> str:
        return f"{self.logged}, simulated with {self.simulated}"


def differences(log: VllmLog, config: RunConfig) -> Iterator[Difference]:
    """Facts and options of the server that the log's meta.json gives another value."""
    gpu, model = log.meta.get("gpu"), log.meta.get("model")
    if isinstance(gpu, str) and not _is_device(gpu, config.server.gpu):
        yield Difference(gpu, config.server.gpu.name)
    if isinstance(model, str) and model.strip() and not _is_model(model, config.model.name):
        yield Difference(model, config.model.name)
    logged = _object(log, "engine_kwargs")
    for key in LIMITS:
        simulated = config.scheduler.parameters.get(key)
        if logged.get(key) not in (None, simulated):
            option = f"scheduler.{key}={logged[key]}"
            yield Difference(f"{key} {logged[key]}", f"{simulated}", option)
    length, caches = logged.get("max_model_len"), logged.get(CACHING)
    if length not in (None, config.model.max_len):
        yield Difference(f"max_model_len {length}", f"{config.model.max_len}")
    if caches not in (None, _finds_prompts(config.policy)):
        yield Difference(f"{CACHING} {caches}", "none" if caches else "a prefix cache")


def _other_options(log: VllmLog, config: RunConfig) -> Iterator[str]:
    for found in differences(log, config):
        yield f"meta.json says {found}{f'; say {found.option}' if found.option else ''}"


def lacks_hits(log: VllmLog, config: RunConfig) -> bool:
    """True if a prefix cache is simulated, whose hits the log's prompts lack the contents for."""
    is_cached = _object(log, "engine_kwargs").get(CACHING) is not False
    return is_cached and log.read().prompt_ids is None and _finds_prompts(config.policy)


def _is_device(device: str, gpu: GpuSpec) -> bool:
    """True if a device, by its driver's name or ours, is this GPU."""
    known = gpu_of_device(device)
    return device == gpu.device or (known is not None and known.name == gpu.name)


def _is_model(words: str, name: str) -> bool:
    """True if the first of these words names this shape."""
    return name_of(words.split()[0], model_names()).model == name


def _ring(config: RunConfig) -> list[str]:
    """A remark on all-reduces between several GPUs that the profile does not have."""
    num_gpus, path = config.server.num_gpus, str(config.cost.parameters.get("path"))
    if (
        num_gpus == 1
        or config.cost.name != PROFILE_COST
        or "all_reduce" in read_profile(path)["sections"]
    ):
        return []
    ring = f"a ring over {config.server.gpu.link_bandwidth / 1e9:g} GB/s stands in for them"
    return [f"all-reduces were not measured: {ring}"]
