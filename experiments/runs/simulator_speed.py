"""The speed of the simulator: each measurement in a new process, one at a time."""

import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from testbed.experiments.runs.progress import status_line
from testbed.experiments.runs.run_store import RunStore
from testbed.memory.prefix_cache.eviction.lru import Lru
from testbed.memory.prefix_cache.replay import Prompt, replay
from testbed.run.simulate import run

CACHE_SIZES = (1_000, 10_000, 100_000)
HEAD = ("setting", "count", "wall s", "a second", "mean batch", "peak GB")
SYSTEM = (  # a roofline that batches as many requests as the paper's system did
    "+system=vllm",
    "cost=analytic",
    "cost.software.overhead_s=0",
    "cost.software.overhead_per_request_s=0.327e-3",
    "cost.efficiencies.attention_bandwidth=0.569",
    "cost.efficiencies.repeated_read=0.22",
)


class Speed(NamedTuple):
    """Requests, or a cache's look-ups and evictions, in the seconds of the event loop; memory of a
    whole process.
    """

    operations: int
    seconds: float
    batch: float = 0.0
    peak_gb: float = 0.0


def measured(
    lengths: tuple[tuple[str, str], ...], num_requests: int, repeats: int
) -> Iterator[tuple[str, ...]]:
    """The rows of the table: runs of several loads, then prefix caches of several sizes. lengths:
    length files by name, which replace embedded models.
    """
    for name, overrides, times in settings(num_requests, repeats):
        yield _cells(name, fastest(name, run_speed, (overrides, lengths), times))
    for size in CACHE_SIZES:
        name = f"look-ups and evictions of a prefix cache of {size:,} blocks"
        yield _cells(name, fastest(name, cache_speed, (size,), repeats))


def _cells(name: str, speed: Speed) -> tuple[str, ...]:
    return (
        name,
        f"{speed.operations:,}",
        f"{speed.seconds:.3f}",
        f"{speed.operations / speed.seconds:,.0f}",
        f"{speed.batch:.1f}",
        f"{speed.peak_gb:.2f}",
    )


def settings(num_requests: int, repeats: int) -> list[tuple[str, tuple[str, ...], int]]:
    """The name, the overrides and the number of repetitions of each run."""
    rate, hour = "arrivals.rate=1", "arrivals.duration_s=3600"
    # A queue that never empties, and a pool that fits as many sequences as the limit admits.
    full = ("server=h200", "server.num_gpus=8", "arrivals.rate=1000", "arrivals.duration_s=20")
    beams = (
        "trace=alpaca",
        "arrivals.rate=8",
        "arrivals.duration_s=900",
        "workload.num_seqs=6",
        "workload.beam=true",
    )
    return [
        ("1 req/s, an hour", (rate, hour), repeats),
        ("2 req/s, an hour", ("arrivals.rate=2", hour), repeats),
        ("1 req/s, an hour, step by step", (rate, hour, "fast_forward=false"), 1),
        ("1 req/s, 7,000 requests", (rate, "arrivals.duration_s=7000"), repeats),
        (f"1 req/s, {num_requests:,} requests", (rate, f"arrivals.duration_s={num_requests}"), 1),
        *((f"batch of {n:,}", (*full, f"scheduler.max_num_seqs={n}"), repeats) for n in (30, 1000)),
        ("beam width 6, 15 minutes of Alpaca at 8 req/s", beams, repeats),
    ]


def fastest(
    name: str, work: Callable[..., Speed], arguments: tuple[Any, ...], repeats: int
) -> Speed:
    """The fastest of some repetitions, each in a separate process; progress is printed to standard
    error.
    """
    speeds: list[Speed] = []
    print(f"measuring {name}", file=sys.stderr, flush=True)
    with status_line(lambda: f"{name}, run {len(speeds) + 1} of {repeats}"):
        for _ in range(repeats):
            with get_context("spawn").Pool(1) as pool:
                speeds.append(pool.apply(work, arguments))
    return min(speeds, key=lambda speed: speed.seconds)


def run_speed(overrides: Sequence[str], lengths: tuple[tuple[str, str], ...]) -> Speed:
    """The speed of vLLM's system on the analytic cost model."""
    result = run(RunStore(Path(), lengths).config((*SYSTEM, *overrides)))
    batch = result.summary["batch"]["mean_per_iteration"]
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    return Speed(result.summary["requests"]["arrived"], result.wall_s, batch, peak_gb)


def cache_speed(num_blocks: int, num_prompts: int = 50_000) -> Speed:
    """Replays prompts of 8 to 40 blocks, each a prefix of one of 300 stories and a unique end, with
    LRU eviction.
    """
    prompts = [
        Prompt(contents, len(contents)) for contents in branching(num_prompts, 300, Random(0))
    ]
    began = time.process_time()
    result = replay(prompts, num_blocks, Lru())
    lookups = sum(len(prompt.contents) for prompt in prompts)
    return Speed(lookups + result.evictions, time.process_time() - began)


def branching(num_prompts: int, num_stories: int, random: Random) -> Iterator[list[int]]:
    """The blocks of prompts that share their beginnings with others."""
    for i in range(num_prompts):
        story, length = random.randrange(num_stories), random.randrange(8, 41)
        shared = random.randrange(length)
        yield [story * 100 + k if k < shared else -1 - 100 * i - k for k in range(length)]
