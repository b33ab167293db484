"""The measurements of `testbed bench`: requests per second of a run, and operations per second of a prefix cache."""

import resource
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from testbed.build import build
from testbed.experiments.runs.run_store import RunStore
from testbed.memory.prefix_cache.eviction.lru import Lru
from testbed.memory.prefix_cache.replay import Prompt, replay
from testbed.run import run

SYSTEM = (  # a roofline that batches as many requests as the paper's system did
    "+system=vllm",
    "cost=analytic",
    "cost.efficiencies.overhead_s=0",
    "cost.efficiencies.overhead_per_request_s=0.327e-3",
    "cost.efficiencies.attention_bandwidth=0.569",
    "cost.efficiencies.repeated_read=0.22",
)


class RunSpeed(NamedTuple):
    """One run. wall_s is the event loop's time only; peak_gb is the memory of a process with only this run."""

    what: str
    requests: int
    wall_s: float
    batch: float
    preemptions: int
    peak_gb: float

    @property
    def per_second(self) -> float:
        """Simulated requests per second of wall time."""
        return self.requests / self.wall_s


class CacheSpeed(NamedTuple):
    """One replay. A block that is not found is published, and in a full cache evicts another."""

    lookups: int
    hits: int
    evictions: int
    cpu_s: float

    @property
    def lookups_per_second(self) -> float:
        """Look-ups per second, found or not."""
        return self.lookups / self.cpu_s

    @property
    def per_second(self) -> float:
        """Look-ups and evictions per second."""
        return (self.lookups + self.evictions) / self.cpu_s


def run_speed(what: str, overrides: Sequence[str], lengths: tuple[tuple[str, str], ...]) -> RunSpeed:
    """The speed of vLLM's system on the analytic cost model."""
    result = run(build(RunStore(Path(), lengths).config((*SYSTEM, *overrides))))
    summary = result.summary
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    batch, preemptions = summary["batch"]["mean_per_iteration"], sum(summary["preemptions"].values())
    return RunSpeed(what, summary["requests"]["arrived"], result.wall_s, batch, preemptions, peak_gb)


def cache_speed(num_blocks: int, num_prompts: int = 50_000) -> CacheSpeed:
    """Replays prompts of 8 to 40 blocks, each a prefix of one of 300 stories and a unique end, with LRU eviction."""
    prompts = branching(num_prompts, 300, Random(0))
    lookups = sum(len(prompt.contents) for prompt in prompts)
    began = time.process_time()
    result = replay(prompts, num_blocks, Lru())
    return CacheSpeed(lookups, sum(result.hits), result.evictions, time.process_time() - began)


def branching(num_prompts: int, num_stories: int, random: Random) -> list[Prompt]:
    """Prompts that share their beginnings with others."""
    prompts = []
    for i in range(num_prompts):
        story, length = random.randrange(num_stories), random.randrange(8, 41)
        shared = random.randrange(length)
        contents = [story * 100 + k if k < shared else -1 - 100 * i - k for k in range(length)]
        prompts.append(Prompt(contents, length))
    return prompts
