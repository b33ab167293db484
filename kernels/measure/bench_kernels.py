"""`python -m kernels.measure.bench_kernels --out FOLDER`: every claim about the kernels, checked and printed.

First all kernels against their references; then paging against contiguous memory, decode, prefill and swap times
beside the goals (the best kernels measured on the same GPU model before), and the fit of one model's profile.
"""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from kernels.launch.compile import require_gpu
from kernels.measure import sweeps
from kernels.measure.bench_inputs import DecodeInputs, Pools, PrefillInputs
from kernels.measure.calibrate import calibrate, dump, file_name
from kernels.measure.fingerprint import fingerprint
from kernels.measure.timing import time_graph, warm_up
from kernels.verify.random_batches import Shape
from kernels.verify.verify_attention import verify
from testbed.core.shapes import read_model

MHA, GQA = Shape(40, 40, 128), Shape(32, 8, 128)
# (shape, sequences, context): microseconds of the best paged kernel and of torch's attention measured before.
DECODE_GOALS = {
    (MHA, 8, 64): (10.2, 12.3), (MHA, 8, 128): (13.0, 16.3), (MHA, 8, 256): (18.6, 21.2),
    (MHA, 32, 64): (19.6, 25.2), (MHA, 32, 128): (29.1, 34.2), (MHA, 32, 256): (48.7, 49.0),
    (MHA, 32, 1024): (164.9, 157.2), (MHA, 128, 512): (312.3, 305.8), (MHA, 8, 8192): (328.8, 344.5),
    (MHA, 1, 16384): (89.0, 87.8), (GQA, 8, 64): (12.3, 11.9), (GQA, 8, 256): (15.9, 12.9),
    (GQA, 32, 64): (13.2, 9.9), (GQA, 32, 128): (18.6, 11.8), (GQA, 32, 256): (23.4, 16.0),
    (GQA, 32, 1024): (47.6, 38.8), (GQA, 128, 512): (88.3, 70.7), (GQA, 8, 8192): (76.6, 72.1),
    (GQA, 1, 16384): (31.0, 26.7),
}  # fmt: skip
PREFILL_GOALS = {
    (MHA, 1, 1024): 111, (MHA, 1, 2048): 238, (MHA, 1, 4096): 632, (MHA, 4, 1024): 251, (MHA, 16, 161): 113,
    (GQA, 1, 1024): 79, (GQA, 1, 2048): 186, (GQA, 1, 4096): 535, (GQA, 4, 1024): 173, (GQA, 16, 161): 63,
}  # fmt: skip
FIG_18A = [(batch, context) for batch in (8, 32) for context in (64, 128, 256)]
READ_BANDWIDTH = 4.36e12  # bytes/s of an H200, as measured before
SWAP_GOAL = 45.0  # GB/s


@dataclass
class Report:
    """Lines as they are printed, kept for the table."""

    rows: list[tuple[str, str, str, str, str]] = field(default_factory=list)

    def add(self, what: str, case: str, value: str, goal: str, met: bool | None) -> None:
        """One result; met is None where nothing was asked."""
        verdict = "" if met is None else "met" if met else "MISSED"
        self.rows.append((what, case, value, goal, verdict))
        print(f"{what} | {case} | {value} | {goal} | {verdict}", flush=True)

    def write(self, folder: Path, device: dict[str, object]) -> None:
        """CSV and Markdown, device and date in the header."""
        header = ("what", "case", "measured", "goal", "verdict")
        table = [",".join(f'"{cell}"' for cell in row) for row in (header, *self.rows)]
        about = ", ".join(f"{key} {value}" for key, value in device.items())
        (folder / "h200.csv").write_text(f"# {about}\n" + "\n".join(table) + "\n")
        lines = ["| " + " | ".join(row) + " |" for row in (header, ("---",) * 5, *self.rows)]
        title = f"# Kernels on {device['device']}, {device['date']}\n\nPrinted by `testbed bench-kernels`; {about}."
        (folder / "h200.md").write_text(title + "\n\n" + "\n".join(lines) + "\n")


def name_of(shape: Shape) -> str:
    """Heads in short."""
    return f"{shape.num_heads}/{shape.num_kv_heads} heads of {shape.head_size}"


def bench_right(report: Report, rounds: int) -> bool:
    """Claim 1: every kernel equals its reference; compute-sanitizer finds nothing."""
    passed = verify(rounds, lambda line: report.add("right", *_split(line), "", None))
    report.add("right", "all kernels", "within tolerance" if passed else "WRONG", "fp16 2e-3, bf16 1e-2", passed)
    for tool in ("memcheck", "racecheck"):
        if shutil.which("compute-sanitizer") is None:
            report.add("right", tool, "compute-sanitizer is not installed", "clean", None)
            continue
        command = [
            "compute-sanitizer",
            "--tool",
            tool,
            "--error-exitcode",
            "9",
            sys.executable,
            "-m",
            "kernels.verify.sanitize",
        ]
        result = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        last = (result.stdout.strip().splitlines() or ["no output"])[-1].strip("= ")
        report.add("right", tool, last, "clean", result.returncode == 0)
    return passed


def paging_cost(inputs: DecodeInputs) -> tuple[float, float, float]:
    """Paged and contiguous microseconds, and the median relative difference of pairs timed in turn."""
    pairs = [(time_graph(inputs.paged()).median_us, time_graph(inputs.contiguous()).median_us) for _ in range(5)]
    paged, contiguous = np.median(pairs, axis=0)
    return float(paged), float(contiguous), float(np.median([p / c - 1 for p, c in pairs]))


def bench_paging(report: Report, pools: Pools) -> None:
    """Claim 2: the price of paging, at the shapes of Fig. 18a and on ragged batches."""
    cases = [(f"{n}x{length}", [length] * n) for n, length in FIG_18A]
    cases += [
        (f"ragged, {n} sequences of mean {m}", sweeps.ragged_lens(n, m, 2048)) for n in (8, 32, 128) for m in (128, 400)
    ]
    for name, lens in cases:
        paged, contiguous, cost = paging_cost(DecodeInputs(pools, MHA, lens))
        report.add(
            "paging cost",
            name,
            f"{paged:.1f} us paged, {contiguous:.1f} us contiguous: {cost:+.1%}",
            "at most 5%",
            cost <= 0.05,
        )
    for n, length in FIG_18A:
        inputs = DecodeInputs(pools, MHA, [length] * n)
        ours, paper = time_graph(inputs.paged()).median_us, time_graph(inputs.paper()).median_us
        report.add("the paper's design", f"{n}x{length}", f"{paper:.1f} us, ours {ours:.1f} us", "", None)
    for size in sweeps.BLOCK_SIZES:
        inputs = DecodeInputs(pools, Shape(40, 40, 128, size), sweeps.ragged_lens(32, 400, 2048))
        ours, paper = time_graph(inputs.paged()).median_us, time_graph(inputs.paper()).median_us
        report.add(
            "by block size",
            f"{size}, ragged 32 of mean 400",
            f"ours {ours:.1f} us, the paper's design {paper:.1f} us",
            "",
            None,
        )


def bench_decode(report: Report, pools: Pools) -> None:
    """Claim 3: decode beside the best known times, torch's attention in the same run beside it."""
    for (shape, n, context), (goal, torch_goal) in DECODE_GOALS.items():
        inputs = DecodeInputs(pools, shape, [context] * n)
        ours, other = time_graph(inputs.paged()), time_graph(inputs.sdpa()).median_us
        rate = inputs.kv_bytes / ours.median_us * 1e6
        share = f", {rate / READ_BANDWIDTH:.0%} of the read bandwidth" if inputs.kv_bytes > 600e6 else ""
        met = ours.median_us <= goal and (not share or rate >= 0.92 * READ_BANDWIDTH)
        text = f"{ours}, {rate / 1e12:.2f} TB/s{share}; torch here {other:.1f} us"
        report.add("decode", f"{name_of(shape)} {n}x{context}", text, f"{goal} (torch {torch_goal})", met)


def bench_prefill(report: Report, pools: Pools) -> None:
    """Claim 4: prefill beside the best known times."""
    for (shape, n, length), goal in PREFILL_GOALS.items():
        inputs = PrefillInputs(pools, shape, [length] * n)
        ours, other = time_graph(inputs.paged()), time_graph(inputs.sdpa()).median_us
        flops = 2 * n * length * (length + 1) * shape.head_size * shape.num_heads
        text = f"{ours}, {flops / ours.median_us / 1e6:.0f} TFLOP/s; torch here {other:.1f} us"
        report.add("prefill", f"{name_of(shape)} {n}x{length}", text, f"{goal}", ours.median_us <= goal)


def bench_swap(report: Report) -> None:
    """Claim 5: swap of 1,024 blocks of opt-13b, and by block size for 256 tokens."""
    model = read_model("opt-13b")
    planes, heads, size = 2 * model.num_layers, model.num_kv_heads, model.head_size
    tokens = 1024 * 16
    device = torch.randn(planes * tokens * heads * size, device="cuda", dtype=torch.float16)
    pinned = torch.empty_like(device, device="cpu", pin_memory=True)
    token_bytes = planes * heads * size * 2
    for block_size, count in ((16, 1024), *((b, 1024 // b) for b in sweeps.BLOCK_SIZES)):
        block = (heads, block_size, size)
        pool, host = device.view(planes, -1, *block), pinned.view(-1, planes, *block)
        for method, direction, _, _, median, *_ in sweeps.swap(pool, host, [count]):
            rate = count * block_size * token_bytes / float(median) / 1e3
            asked = method == "fused" and count == 1024 and block_size == 16
            case = f"{method}, {direction}, {count} blocks of {block_size} tokens"
            goal = f"{SWAP_GOAL} GB/s" if asked else ""
            report.add(
                "swap",
                case,
                f"{float(median) / 1e3:.2f} ms, {rate:.1f} GB/s",
                goal,
                rate >= SWAP_GOAL if asked else None,
            )


def bench_fit(report: Report, models: Iterable[str], folder: Path) -> None:
    """Claim 6: a fresh profile, kept in the folder, predicts iterations it never saw."""
    for name in models:
        profile = calibrate(read_model(name), 1)
        (folder / file_name(profile)).write_text(dump(profile))
        fit = profile["fit"]
        median, p95 = fit["median_error"], fit["p95_error"]
        text = f"median error {median:.2%}, p95 {p95:.2%} on {fit['num_batches']} ragged batches"
        report.add("fit", name, text, "3%, 8%", median < 0.03 and p95 < 0.08)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line of `bench-kernels`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("."), help="folder for h200.csv and h200.md")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of random checks, 110 batches each")
    parser.add_argument("--fit", nargs="*", default=["opt-13b"], help="models whose fit is tested")
    options = parser.parse_args(arguments)
    require_gpu()
    report, device = Report(), fingerprint()
    if not bench_right(report, options.rounds):
        raise SystemExit("a kernel disagrees with its reference: nothing was timed")
    pools = Pools(12 << 30)
    warm_up()
    bench_paging(report, pools)
    bench_decode(report, pools)
    bench_prefill(report, pools)
    del pools
    torch.cuda.empty_cache()
    bench_swap(report)
    torch.cuda.empty_cache()
    bench_fit(report, options.fit, options.out)
    report.write(options.out, device)


def _split(line: str) -> tuple[str, str]:
    name, _, value = line.removeprefix("right: ").partition(": ")
    return name, value


if __name__ == "__main__":
    main()
