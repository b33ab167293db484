"""`testbed capacity` and `bench`: the highest rate of a simulated server, and the speed of the
simulator.
"""

import resource
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from testbed.experiments.commands.terminal import plain_table, show
from testbed.experiments.runs.choice_names import length_file
from testbed.experiments.runs.progress import spoken
from testbed.experiments.runs.run_store import RunStore
from testbed.memory.prefix_cache.eviction.lru import Lru
from testbed.memory.prefix_cache.replay import Prompt, replay
from testbed.run import run

CACHE_SIZES = (1_000, 10_000, 100_000)
SYSTEM = (  # a roofline that batches as many requests as the paper's system did
    "+system=vllm",
    "cost=analytic",
    "cost.efficiencies.overhead_s=0",
    "cost.efficiencies.overhead_per_request_s=0.327e-3",
    "cost.efficiencies.attention_bandwidth=0.569",
    "cost.efficiencies.repeated_read=0.22",
)


def capacity(options: Namespace) -> None:
    """Print every tried rate, then the answer."""
    from testbed.api import capacity
    from testbed.experiments.runs.overrides import expand

    words = expand(options.from_vllm, options.overrides)
    needed = f"{100 * options.share:g}%"

    def seen(rate: float, inside: float) -> None:  # immediately: a search may take minutes
        verdict = "keeps" if inside >= options.share else "misses"
        print(
            f"{rate:>8g} req/s: {100 * inside:5.1f}% inside, {verdict} {needed}",
            file=sys.stderr,
            flush=True,
        )

    found = capacity(
        *words,
        share=options.share,
        low=options.low,
        high=options.high,
        precision=options.precision,
        folder=options.runs,
        seen=seen,
    )
    inside, goodput = next(point[1:] for point in found.points if point[0] == found.rate)
    print(
        f"capacity: {found.rate:g} req/s, simulated: {100 * inside:.1f}% of the requests meet the "
        f"SLO "
        f"({needed} must), goodput {goodput:.3g} req/s"
    )


class Speed(NamedTuple):
    """Requests, or a cache's look-ups and evictions, in the seconds of the event loop; memory of a
    whole process.
    """

    operations: int
    seconds: float
    batch: float = 0.0
    peak_gb: float = 0.0


def bench(options: Namespace) -> None:
    """Measure, each in a new process, one at a time; print a table."""
    lengths = (length_file(options.lengths),) if options.lengths else ()
    rows = [
        (what, fastest(what, run_speed, (overrides, lengths), repeats))
        for what, overrides, repeats in settings(options.requests, options.repeats)
    ]
    for size in CACHE_SIZES:
        what = f"look-ups and evictions of a prefix cache of {size:,} blocks"
        rows.append((what, fastest(what, cache_speed, (size,), options.repeats)))
    head = ("setting", "count", "wall s", "a second", "mean batch", "peak GB")
    cells = (
        (
            what,
            f"{one.operations:,}",
            f"{one.seconds:.3f}",
            f"{one.operations / one.seconds:,.0f}",
            f"{one.batch:.1f}",
            f"{one.peak_gb:.2f}",
        )
        for what, one in rows
    )
    show(plain_table(head, cells))


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
    what: str, work: Callable[..., Speed], arguments: tuple[Any, ...], repeats: int
) -> Speed:
    """The fastest of some repetitions, each in a separate process; progress is printed to standard
    error.
    """
    speeds: list[Speed] = []
    print(f"measuring {what}", file=sys.stderr, flush=True)
    with spoken(lambda: f"{what}, run {len(speeds) + 1} of {repeats}"):
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
