"""The checks and timings of `testbed gpu bench`; goals are the best earlier times on the same
GPU model.
"""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from testbed.core.shapes import read_model
from testbed.kernels.engine.records import write_csv
from testbed.kernels.launch.host_memory import pinned
from testbed.kernels.measure import sweeps
from testbed.kernels.measure.bench_inputs import DecodeInputs, Pools, PrefillInputs
from testbed.kernels.measure.timing import (
    Timing,
    fingerprint,
    in_words,
    time_graph,
    warm_up,
)
from testbed.kernels.verify.reference import Shape
from testbed.kernels.verify.verify_attention import verify

MHA, GQA, SMALL = Shape(40, 40, 128), Shape(32, 8, 128), Shape(14, 2, 64)
GOALS = Path(__file__).with_name("goals.csv")
CONTIGUOUS = 1.1  # goal as a multiple of the time of torch's attention on contiguous memory
FIG_18A = [(batch, context) for batch in (8, 32) for context in (64, 128, 256)]
READ_BANDWIDTH = 4.36e12  # bytes/s of an H200, as measured before
SWAP_GOAL = 45.0  # GB/s
GOAL_AXES = ("num_heads", "num_kv_heads", "head_size", "batch", "context")
PROSE = ("what", "case", "measured", "goal", "verdict")
# Of a time, in microseconds: median, 10th and 90th percentile. kernel: paged, contiguous, paper,
# torch; fused or per block for swaps, direction out or in. context: tokens per sequence, their mean
# if spread is ragged.
COLUMNS = (
    "kernel",
    "median_us",
    "low_us",
    "high_us",
    "num_heads",
    "num_kv_heads",
    "head_size",
    "block_size",
    "spread",
    "batch",
    "context",
    "direction",
    "num_blocks",
)
WHERE = ("batch", "context", "spread", "direction", "num_blocks")


class Report:
    """The printed lines and their times, collected for the tables."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(
        self,
        what: str,
        case: str,
        value: str,
        goal: str = "",
        met: bool | None = None,
        *,
        batch: tuple[Any, ...] = (),
        **times: Timing,
    ) -> None:
        """Add and print one result with its times by kernel; met is None if there is no goal.
        batch: of `timed`.
        """
        verdict = "" if met is None else "met" if met else "MISSED"
        prose = dict(zip(PROSE, (what, case, value, goal, verdict), strict=True))
        print(" | ".join(prose.values()), flush=True)
        first, *others = [timed(kernel, time, *batch) for kernel, time in times.items()] or [{}]
        self.rows += [prose | first, *({"what": what, "case": case, **time} for time in others)]

    def write(self, folder: Path, device: dict[str, object]) -> None:
        """Write the rows as CSV, below a line with device and date."""
        names = (*PROSE, *COLUMNS)
        write_csv(
            folder / "h200.csv",
            names,
            ([row.get(name, "") for name in names] for row in self.rows),
            in_words(device),
        )


def timed(kernel: str, timing: Timing, shape: Shape, *where: object) -> dict[str, Any]:
    """A row of COLUMNS. where: values of its last columns, from `batch` on; the spread is equal
    unless it is given.
    """
    times = {name: round(us, 3) for name, us in timing._asdict().items()}
    sizes = {name: getattr(shape, name) for name in ("num_heads", "num_kv_heads", "head_size")}
    block_size = "" if kernel in ("contiguous", "torch") else shape.block_size
    row = {"kernel": kernel, **times, **sizes, "block_size": block_size, "spread": "equal"}
    return row | dict(zip(WHERE, where, strict=False))


def bench_correctness(report: Report) -> bool:
    """Claim 1: every kernel equals its reference."""

    def right(line: str) -> None:
        name, _, value = line.removeprefix("right: ").partition(": ")
        report.add("right", name, value)

    passed = verify(right)
    report.add(
        "right",
        "all kernels",
        "within tolerance" if passed else "WRONG",
        "fp16 2e-3, bf16 1e-2",
        passed,
    )
    return passed


def bench_paging(report: Report, pools: Pools) -> None:
    """Claim 2: the extra time of paging, at the shapes of Fig. 18a and on ragged batches."""
    cases = [(f"{n}x{length}", "equal", n, length) for n, length in FIG_18A]
    cases += [
        (f"ragged, {n} sequences of mean {m}", "ragged", n, m)
        for n in (8, 32, 128)
        for m in (128, 400)
    ]
    for name, spread, n, length in cases:
        lens = [length] * n if spread == "equal" else sweeps.ragged_lens(n, length, 2048)
        inputs = DecodeInputs(pools, MHA, lens)
        pairs = [
            (time_graph(inputs.paged()).median_us, time_graph(inputs.contiguous()).median_us)
            for _ in range(5)
        ]
        paged, contiguous = (Timing.of(column) for column in np.transpose(pairs))
        cost = float(np.median([p / c - 1 for p, c in pairs]))
        text = (
            f"{paged.median_us:.1f} us paged, {contiguous.median_us:.1f} us contiguous: {cost:+.1%}"
        )
        times = {"paged": paged, "contiguous": contiguous}
        report.add(
            "paging cost",
            name,
            text,
            "at most 5%",
            cost <= 0.05,
            batch=(MHA, n, length, spread),
            **times,
        )


def bench_paper(report: Report, pools: Pools) -> None:
    """The paper's design compared with ours, at the shapes of Fig. 18a and by block size."""
    for n, length in FIG_18A:
        inputs = DecodeInputs(pools, MHA, [length] * n)
        paged, paper = time_graph(inputs.paged()), time_graph(inputs.paper())
        text = f"{paper.median_us:.1f} us, ours {paged.median_us:.1f} us"
        report.add(
            "the paper's design",
            f"{n}x{length}",
            text,
            batch=(MHA, n, length),
            paper=paper,
            paged=paged,
        )
    for size in sweeps.BLOCK_SIZES:
        shape = Shape(40, 40, 128, size)
        inputs = DecodeInputs(pools, shape, sweeps.ragged_lens(32, 400, 2048))
        paged, paper = time_graph(inputs.paged()), time_graph(inputs.paper())
        case, text = (
            f"{size}, ragged 32 of mean 400",
            f"ours {paged.median_us:.1f} us, the paper's design ",
        )
        where = shape, 32, 400, "ragged"
        report.add(
            "by block size",
            case,
            f"{text}{paper.median_us:.1f} us",
            batch=where,
            paged=paged,
            paper=paper,
        )


def goals(kind: str) -> Iterator[tuple[Shape, int, int, str, str]]:
    """Shapes, sequences, context, our goal and torch's time."""
    for row in csv.DictReader(
        line for line in GOALS.read_text().splitlines() if not line.startswith("#")
    ):
        if row["kind"] == kind:
            heads, kv_heads, size, n, context = (int(row[name]) for name in GOAL_AXES)
            yield Shape(heads, kv_heads, size), n, context, row["goal_us"], row["torch_us"]


def heads_of(shape: Shape, batch: int, length: int) -> str:
    """The case of a batch of sequences of equal length."""
    return f"{shape.num_heads}/{shape.num_kv_heads} heads of {shape.head_size} {batch}x{length}"


def bench_decode(report: Report, pools: Pools) -> None:
    """Claim 3: decode compared with the best known times, and with torch's attention in the same
    run.
    """
    for shape, n, length, goal, torch_goal in goals("decode"):
        inputs = DecodeInputs(pools, shape, [length] * n)
        ours, other = time_graph(inputs.paged()), time_graph(inputs.sdpa())
        rate = inputs.kv_bytes / ours.median_us * 1e6
        share = (
            f", {rate / READ_BANDWIDTH:.0%} of the read bandwidth"
            if inputs.kv_bytes > 600e6
            else ""
        )
        met = ours.median_us <= float(goal) and (not share or rate >= 0.92 * READ_BANDWIDTH)
        text = f"{ours}, {rate / 1e12:.2f} TB/s{share}; torch here {other.median_us:.1f} us"
        batch, words = (shape, n, length), f"{goal} (torch {torch_goal})"
        report.add(
            "decode", heads_of(*batch), text, words, met, batch=batch, paged=ours, torch=other
        )


def bench_prefill(report: Report, pools: Pools) -> None:
    """Claim 4: prefill compared with the best known times."""
    for shape, n, length, goal, _ in goals("prefill"):
        inputs = PrefillInputs(pools, shape, [length] * n)
        ours, other = time_graph(inputs.paged()), time_graph(inputs.sdpa())
        flops = 2 * n * length * (length + 1) * shape.head_size * shape.num_heads
        text = (
            f"{ours}, {flops / ours.median_us / 1e6:.0f} TFLOP/s; torch here "
            f"{other.median_us:.1f} us"
        )
        met = ours.median_us <= min(float(goal), CONTIGUOUS * other.median_us)
        batch, words = (shape, n, length), f"{goal}, and {CONTIGUOUS:.2f} of torch here"
        report.add(
            "prefill", heads_of(*batch), text, words, met, batch=batch, paged=ours, torch=other
        )


def bench_swap(report: Report) -> None:
    """Claim 5: swap of 1,024 blocks of opt-13b, and by block size for 256 tokens."""
    model = read_model("opt-13b")
    planes, heads, size, tokens = (
        2 * model.num_layers,
        model.num_kv_heads,
        model.head_size,
        1024 * 16,
    )
    device = torch.randn(planes * tokens * heads * size, device="cuda", dtype=torch.float16)
    below = pinned(device.shape, device.dtype)
    token_bytes = planes * heads * size * 2
    for block_size, count in ((16, 1024), *((b, 1024 // b) for b in sweeps.BLOCK_SIZES)):
        shape = Shape(model.num_heads, heads, size, block_size)
        pool = device.view(planes, -1, heads, block_size, size)
        host = below.view(-1, planes, heads, block_size, size)
        for method, direction, _, _, *us in sweeps.swap(pool, host, [count]):
            timing = Timing(*map(float, us))
            rate = count * block_size * token_bytes / timing.median_us / 1e3
            goals = method == "fused" and count == 1024 and block_size == 16
            case = f"{method}, {direction}, {count} blocks of {block_size} tokens"
            goal, met = (f"{SWAP_GOAL} GB/s", rate >= SWAP_GOAL) if goals else ("", None)
            text, where = (
                f"{timing.median_us / 1e3:.2f} ms, {rate:.1f} GB/s",
                (shape, "", "", "", direction, count),
            )
            report.add("swap", case, text, goal, met, batch=where, **{str(method): timing})


def bench(out: Path) -> None:
    """Check, time, and write the report to a folder."""
    report, device = Report(), fingerprint()
    if not bench_correctness(report):
        raise SystemExit("a kernel disagrees with its reference: nothing was timed")
    pools = Pools(12 << 30)
    warm_up()
    bench_paging(report, pools)
    bench_paper(report, pools)
    bench_decode(report, pools)
    bench_prefill(report, pools)
    del pools
    torch.cuda.empty_cache()
    bench_swap(report)
    report.write(out, device)
