"""`testbed bench`: how fast the simulator is, on one core, with all records kept in memory."""

import resource
import sys
from collections.abc import Callable, Sequence
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from rich.table import Table

from experiments.commands.arguments.bench import parser
from experiments.commands.cache_speed import cache_speed
from experiments.commands.console import wide_console
from experiments.commands.progress import spoken
from experiments.runs.build import build
from experiments.runs.lab import Lab
from experiments.runs.length_files import length_file
from experiments.runs.point import run

HOUR = ("+system=vllm", "cost=analytic", "arrivals.duration_s=3600")
BEAMS = (
    "+system=vllm",
    "cost=analytic",
    "trace=alpaca",
    "arrivals.rate=8",
    "arrivals.duration_s=900",
    "workload.num_seqs=6",
    "workload.beam=true",
)
SMALL_BATCH, LARGE_BATCH = 30, 1000
CACHE_SIZES = (1_000, 10_000, 100_000)
NUM_MEASUREMENTS = 8 + len(CACHE_SIZES)
T = TypeVar("T")


class Speed(NamedTuple):
    """One measurement. peak_gb is that of a process that did nothing else."""

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


def main(argv: list[str]) -> None:
    """Measure and print; each measurement in a fresh process, one after another."""
    options = parser().parse_args(argv)
    lengths = (length_file(options.lengths),) if options.lengths else ()
    began = count(1)

    def measure(what: str, overrides: Sequence[str], repeats: int) -> Speed:
        speeds = each_alone(f"{next(began)}/{NUM_MEASUREMENTS}", what, one_run, (what, overrides, lengths), repeats)
        return min(speeds, key=lambda speed: speed.wall_s)

    hour = [measure("1 req/s, an hour", (*HOUR, "arrivals.rate=1"), options.repeats)]
    hour.append(measure("2 req/s, an hour", (*HOUR, "arrivals.rate=2"), options.repeats))
    slow = measure("1 req/s, an hour, step by step", (*HOUR, "arrivals.rate=1", "fast_forward=false"), 1)
    growing = [
        measure(
            f"1 req/s, {n:,} requests",
            ("+system=vllm", "cost=analytic", "arrivals.rate=1", f"arrivals.duration_s={n}"),
            again,
        )
        for n, again in ((7_000, options.repeats), (options.requests, 1))
    ]
    batches = [measure(f"batch of {n:,}", batch_setting(n), options.repeats) for n in (SMALL_BATCH, LARGE_BATCH)]
    beams = measure("beam width 6, 15 minutes of Alpaca at 8 req/s", BEAMS, options.repeats)
    show([*hour, slow, *growing, *batches, beams])
    print(f"step by step takes {slow.wall_s / hour[0].wall_s:.0f} times as long")
    print(f"time per request, {options.requests:,} against 7,000 requests: {_ratio(growing):.2f}x")
    print(f"time per request, batch of {LARGE_BATCH:,} against {SMALL_BATCH}: {_ratio(batches):.2f}x")
    for num_blocks in CACHE_SIZES:
        print_cache_speed(f"{next(began)}/{NUM_MEASUREMENTS}", num_blocks, options.repeats)


def batch_setting(max_num_seqs: int) -> Sequence[str]:
    """A queue that never empties, in front of a pool that holds as many sequences as the limit lets in."""
    return (
        "+system=vllm",
        "cost=analytic",
        "server=h200",
        "server.num_gpus=8",
        "arrivals.rate=1000",
        "arrivals.duration_s=20",
        f"scheduler.max_num_seqs={max_num_seqs}",
    )


def each_alone(place: str, what: str, work: Callable[..., T], arguments: tuple[Any, ...], repeats: int) -> list[T]:
    """What some repetitions of the work return, each in a process of its own; where it is goes to standard error."""
    results: list[T] = []
    print(f"{place}: measuring {what}", file=sys.stderr, flush=True)
    with spoken(lambda: f"{place}: {what}, run {len(results) + 1} of {repeats}"):
        for _ in range(repeats):
            with get_context("spawn").Pool(1) as pool:
                results.append(pool.apply(work, arguments))
    return results


def print_cache_speed(place: str, num_blocks: int, repeats: int) -> None:
    """The fastest of some replays on a prefix cache, least recently used first."""
    what = f"prefix cache of {num_blocks:,} blocks"
    speed = min(each_alone(place, what, cache_speed, (num_blocks,), repeats), key=lambda speed: speed.cpu_s)
    print(f"{what}: {speed.per_second:,.0f} look-ups and evictions/s, {speed.lookups_per_second:,.0f} look-ups alone")


def one_run(what: str, overrides: Sequence[str], lengths: tuple[tuple[str, str], ...]) -> Speed:
    """Wall time of the event loop alone."""
    result = run(build(Lab(Path(), lengths).config(overrides)))
    summary = result.summary
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    batch, preemptions = summary["batch"]["mean_per_iteration"], sum(summary["preemptions"].values())
    return Speed(what, summary["requests"]["arrived"], result.wall_s, batch, preemptions, peak_gb)


def show(speeds: Sequence[Speed]) -> None:
    """All measurements as a table."""
    table = Table("setting", "requests", "wall s", "requests/s", "mean batch", "preemptions", "peak GB")
    for s in speeds:
        table.add_row(
            s.what, f"{s.requests:,}", f"{s.wall_s:.3f}", f"{s.per_second:,.0f}", f"{s.batch:.1f}",
            f"{s.preemptions:,}", f"{s.peak_gb:.2f}",
        )  # fmt: skip
    wide_console().print(table)


def _ratio(pair: Sequence[Speed]) -> float:
    small, large = pair
    return small.per_second / large.per_second
