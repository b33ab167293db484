"""How many KV blocks a server had: from its log's meta.json, or at least so many, from what was resident at once."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from testbed.core.request import Column
from testbed.traces.files import read_json
from testbed.traces.vllm_log import VllmLog, adjacent_path

NEAR = 0.95  # of the high-water mark, where the pool counts as full, and of the limit of running requests
LONG = 20  # decode steps: where memory is free, a request is let in at the next iteration, and its prompt done soon


class HighWater(NamedTuple):
    """The most blocks that requests used at once; memory_short: whether somebody waited for blocks at about that
    level, while fewer requests were running than the server's limit. Only then is it the size of the pool."""

    blocks: int
    memory_short: bool


def meta_of(log: VllmLog) -> Mapping[str, Any]:
    """meta.json in the log's folder, empty where there is none."""
    path = adjacent_path(log.path, "meta.json")
    found = read_json(str(path)) if path else {}
    return found if isinstance(found, dict) else {}


def recorded_blocks(meta: Mapping[str, Any]) -> tuple[int, int | None] | None:
    """The number of KV blocks that meta.json has, and their size in tokens; None where it has none."""
    for place in _places(meta):
        count, size = place.get("num_gpu_blocks"), place.get("block_size")
        if type(count) is int and count > 0:
            return count, size if type(size) is int else None
    return None


def _places(meta: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    resolved = meta.get("resolved_config") or {}
    for place in (meta, meta.get("kv_cache"), meta.get("cache_config"), resolved.get("cache_config")):
        if isinstance(place, Mapping):
            yield place


def high_water(log: VllmLog, block_size: int, max_num_seqs: int | None) -> HighWater:
    """Blocks of requests between their first and last token, which grow by a token a step; at its first tokens and
    just before its ends, where the sum is largest. Prompts on their way count nothing; blocks that are shared, or of
    requests that are preempted meanwhile, count as if no block were shared."""
    times, prompts = log.times, log.read().prompt_len
    moments = np.unique(np.concatenate([times.first_token_s, np.nextafter(times.finish_s, -np.inf)]))
    levels = np.array([_blocks_at(log, prompts, moment, block_size) for moment in moments])
    full = moments[levels >= NEAR * levels.max()]
    return HighWater(int(levels.max()), any(_memory_waited_for(log, moment, max_num_seqs) for moment in full))


def _blocks_at(log: VllmLog, prompts: Column, moment: float, block_size: int) -> int:
    times = log.times
    here = (times.first_token_s <= moment) & (moment < times.finish_s)
    first, finish, steps = times.first_token_s[here], times.finish_s[here], times.output_len[here] - 1
    written = np.floor((moment - first) / (finish - first) * steps)
    return int(np.ceil((prompts[here] + 1 + written) / block_size).sum())


def _memory_waited_for(log: VllmLog, moment: float, max_num_seqs: int | None) -> bool:
    times = log.times
    waiting = (times.arrival_s <= moment) & (moment < times.first_token_s)
    step_s = float(np.median(times.tpot_s)) if len(times.tpot_s) else 0.0
    long = bool((times.ttft_s[waiting] > LONG * step_s).any())
    return long and (max_num_seqs is None or times.running_at(np.array([moment]))[0] < NEAR * max_num_seqs)
