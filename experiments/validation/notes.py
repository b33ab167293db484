"""What a reader of a validation should know of the server that was simulated."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from experiments.runs.identity import content_hash
from experiments.validation.log_replay import Log, Replayed
from traces.vllm_log import beside

LIMITS = ("max_num_seqs", "max_num_batched_tokens")


def notes(log: Log, config: DictConfig, replayed: Replayed, blocks_given: bool) -> Iterator[str]:
    """One line for each thing that was taken because the log does not say it, or that the log says otherwise."""
    size, blocks = replayed.block_size, replayed.num_blocks
    if not blocks_given:
        yield (
            f"the log does not say how many KV blocks there were; taken: {blocks:,} of {size} tokens, what "
            f"{config.server.memory_utilization:g} of {config.server.name} leaves; say server.num_blocks=N"
        )
    if null_blocks := int(config.get("null_blocks", 0)):
        told = (
            f"{blocks + null_blocks:,} blocks are the server's number; it keeps {null_blocks} for itself (null_blocks)"
        )
        yield f"{told}, so {blocks:,} hold tokens"
    if replayed.preemptions:
        yield f"{replayed.preemptions:,} preemptions in the simulation; the log does not count them"
    if log.workload is None and "prefix_cache" in str(config.policy._target_):
        yield "no token ids (--workload): no prompt finds another's blocks"
    yield from _limits(log, config)
    yield from _fitted(log, replayed.measured)
    if replayed.swaps and "swap" in replayed.measured:
        rate = config.server.gpu.host_bandwidth / 1e9
        yield f"no swap times in the profile: {replayed.swaps:,} swaps at the data sheet's {rate:g} GB/s"


def _limits(log: Log, config: DictConfig) -> Iterator[str]:
    """Limits that the server was started with, where they are not those of the simulated one."""
    meta = beside(log.path, "meta.json")
    told: dict[str, Any] = json.loads(Path(meta).read_text()).get("engine_kwargs", {}) if meta else {}
    for key in LIMITS:
        here = config.scheduler.get(key)
        if told.get(key) not in (None, here):
            yield f"meta.json says {key} {told[key]}, simulated with {here}; say scheduler.{key}={told[key]}"


def _fitted(log: Log, measured: Mapping[str, Any]) -> Iterator[str]:
    """Whether the profile's software times come from this very log."""
    fitted = measured.get("software_fitted_on", {})
    if content_hash(log.path) in fitted.values():
        yield "the profile's software times were fitted on this very log: its errors are of a fit, not of a prediction"
    elif fitted:
        yield f"software times fitted on {', '.join(fitted)}; this log was not among them"
