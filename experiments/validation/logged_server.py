"""The server that a log's files describe: its KV blocks, and on several GPUs its links, set in the config."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from testbed.config import RunConfig
from testbed.core.errors import InputError
from testbed.cost.profile import read_profile
from testbed.cost.sections import has
from testbed.experiments.importers.imported import bench_link
from testbed.experiments.validation.kv_blocks import doubts, high_water, meta_of, recorded_blocks
from testbed.experiments.validation.log_replay import PROFILE_COST
from testbed.traces.vllm_log import VllmLog

POOL = ("server.num_blocks=", "server.kv_memory_gib")


class Described(NamedTuple):
    """A log's server: a config, and where its parts come from."""

    config: RunConfig
    notes: list[str]


def described(
    logs: Sequence[VllmLog], config: RunConfig, overrides: Sequence[str], blocks_from_log: bool = False
) -> list[Described]:
    """The server of each log, with what speaks against the log itself. blocks_from_log: without a recorded number, the
    logs' high-water mark is the pool."""
    configured = any(text.startswith(POOL) for text in overrides)
    found = []
    for log in logs:
        here = Described(config, [])
        if not configured:
            here = _recorded(log, config) or _from_logs(logs, config, blocks_from_log)
        links = _links(log, here.config)
        found.append(Described(links.config, [*here.notes, *links.notes, *doubts(log, config), *log.remarks]))
    return found


def _recorded(log: VllmLog, config: RunConfig) -> Described | None:
    recorded = recorded_blocks(meta_of(log))
    if recorded is None:
        return None
    blocks, block_size = recorded
    size = config.policy.parameters.get("block_size")
    if block_size not in (None, size):
        raise InputError(f"{log.path}: meta.json says block_size {block_size}, simulated with {size}; "
                         f"say policy.block_size={block_size}")  # fmt: skip
    return Described(_with_blocks(config, blocks), [f"meta.json: {blocks:,} KV blocks"])


def _from_logs(logs: Sequence[VllmLog], config: RunConfig, blocks_from_log: bool) -> Described:
    size, server = config.policy.parameters.get("block_size", 1), config.server
    rest = server.kv_slots(config.model, size) // size
    left = f"{rest:,} of {size} tokens, what {server.memory_utilization:g} of {server.name} leaves"
    if not blocks_from_log:
        way_out = "say server.num_blocks=N, or --blocks-from-log"
        return Described(config, [f"the log does not say how many KV blocks there were; taken: {left}; {way_out}"])
    limit = config.scheduler.parameters.get("max_num_seqs")
    marks = {log.path: high_water(log, size, limit) for log in logs}
    path, most = max(marks.items(), key=lambda item: item[1].blocks)
    mark = f"requests of {Path(path).name} used up to {most.blocks:,} blocks at once"
    if not most.memory_short and most.blocks <= rest:
        return Described(config, [f"{mark}, and none waited for more; used here: {left}"])
    configured = f"{mark} while others waited: taken as the pool (memory would leave {rest:,})"
    return Described(_with_blocks(config, most.blocks + config.null_blocks), [configured])


def _with_blocks(config: RunConfig, blocks: int) -> RunConfig:
    computing = {name: config.server.default(name) for name in ("memory_utilization", "workspace_gib")}
    return replace(config, server=replace(config.server, num_blocks=blocks, **computing))


def _links(log: VllmLog, config: RunConfig) -> Described:
    """Links as config.json of the benchmark has them, where several GPUs have no measured all-reduces."""
    num_gpus = config.server.num_gpus
    if num_gpus == 1 or config.cost.name != PROFILE_COST:
        return Described(config, [])
    if has(read_profile(str(config.cost.parameters["path"])), "all_reduce"):
        return Described(config, [])
    choices = config.cost.parameters["choices"]
    link = bench_link(Path(log.path).parent)
    if link is None or choices.parameters.get("parallel_layer_s"):
        rate = config.server.gpu.link_bandwidth / 1e9
        configured = "; import the profile with --link and --all-reduce-us, or with --nccl"
        return Described(
            config, [f"all-reduces were not measured: a ring over {rate:g} GB/s stands in for them{configured}"]
        )
    gpu = replace(config.server.gpu, link_bandwidth=link.bandwidth)
    cost = config.cost.updated(choices=choices.updated(parallel_layer_s={num_gpus: 2 * link.latency_s}))
    return Described(
        replace(config, server=replace(config.server, gpu=gpu), cost=cost), [f"all-reduces: config.json, {link}"]
    )
