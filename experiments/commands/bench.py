"""`testbed bench`: measures the simulator's speed on one core, with all records in memory."""

import sys
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from typing import Any, TypeVar

from testbed.experiments.commands.parser import Parser, at_least_one

SMALL_BATCH, LARGE_BATCH = 30, 1000
CACHE_SIZES = (1_000, 10_000, 100_000)
T = TypeVar("T", bound=Any)


def parser() -> Parser:
    this = Parser("bench", "Measures the simulator's speed on one core, with all records in memory.")
    this.add_argument("--lengths", metavar="FILE", help="ShareGPT length file; default: the embedded model")
    this.add_argument("--repeats", type=at_least_one, default=3, metavar="N", help="keep the fastest of N (default 3)")
    this.add_argument("--requests", type=at_least_one, default=1_000_000, metavar="N", help="requests of the long run")
    return this


def main(argv: list[str]) -> None:
    """Measure and print; each measurement runs in a new process, one at a time."""
    options = parser().parse_args(argv)
    from testbed.experiments.commands.speed import cache_speed, run_speed
    from testbed.experiments.runs.choice_names import length_file

    lengths = (length_file(options.lengths),) if options.lengths else ()
    measured = settings(options.requests, options.repeats)
    total = len(measured) + len(CACHE_SIZES)
    speeds = [
        fastest(f"{number}/{total}", what, run_speed, (what, overrides, lengths), repeats)
        for number, (what, overrides, repeats) in enumerate(measured, 1)
    ]
    hour, _, slow, short, long, small, large, _ = speeds
    show(speeds)
    print(f"step by step takes {slow.wall_s / hour.wall_s:.0f} times as long")
    print(f"time per request, {options.requests:,} against 7,000 requests: {short.per_second / long.per_second:.2f}x")
    print(
        f"time per request, batch of {LARGE_BATCH:,} against {SMALL_BATCH}: {small.per_second / large.per_second:.2f}x"
    )
    for number, num_blocks in enumerate(CACHE_SIZES, len(measured) + 1):
        what = f"prefix cache of {num_blocks:,} blocks"
        best = fastest(f"{number}/{total}", what, cache_speed, (num_blocks,), options.repeats)
        print(f"{what}: {best.per_second:,.0f} look-ups and evictions/s, {best.lookups_per_second:,.0f} look-ups alone")


def settings(num_requests: int, repeats: int) -> list[tuple[str, tuple[str, ...], int]]:
    """The name, the overrides and the number of repetitions of each measurement."""
    rate, hour = "arrivals.rate=1", "arrivals.duration_s=3600"
    # A queue that never empties, and a pool that fits as many sequences as the limit admits.
    full = ("server=h200", "server.num_gpus=8", "arrivals.rate=1000", "arrivals.duration_s=20")
    beams = ("trace=alpaca", "arrivals.rate=8", "arrivals.duration_s=900", "workload.num_seqs=6", "workload.beam=true")
    return [
        ("1 req/s, an hour", (rate, hour), repeats),
        ("2 req/s, an hour", ("arrivals.rate=2", hour), repeats),
        ("1 req/s, an hour, step by step", (rate, hour, "fast_forward=false"), 1),
        ("1 req/s, 7,000 requests", (rate, "arrivals.duration_s=7000"), repeats),
        (f"1 req/s, {num_requests:,} requests", (rate, f"arrivals.duration_s={num_requests}"), 1),
        *((f"batch of {n:,}", (*full, f"scheduler.max_num_seqs={n}"), repeats) for n in (SMALL_BATCH, LARGE_BATCH)),
        ("beam width 6, 15 minutes of Alpaca at 8 req/s", beams, repeats),
    ]


def fastest(place: str, what: str, work: Callable[..., T], arguments: tuple[Any, ...], repeats: int) -> T:
    """The fastest of some repetitions, each in a separate process; progress is printed to standard error."""
    from testbed.experiments.runs.progress import spoken

    speeds: list[T] = []
    print(f"{place}: measuring {what}", file=sys.stderr, flush=True)
    with spoken(lambda: f"{place}: {what}, run {len(speeds) + 1} of {repeats}"):
        for _ in range(repeats):
            with get_context("spawn").Pool(1) as pool:
                speeds.append(pool.apply(work, arguments))
    return max(speeds, key=lambda speed: speed.per_second)


def show(speeds: Sequence[Any]) -> None:
    """The runs as a table."""
    from rich.table import Table

    from testbed.experiments.commands.console import wide_console

    table = Table("setting", "requests", "wall s", "requests/s", "mean batch", "preemptions", "peak GB")
    for s in speeds:
        table.add_row(
            s.what, f"{s.requests:,}", f"{s.wall_s:.3f}", f"{s.per_second:,.0f}", f"{s.batch:.1f}",
            f"{s.preemptions:,}", f"{s.peak_gb:.2f}",
        )  # fmt: skip
    wide_console().print(table)
