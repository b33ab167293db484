"""The bench's table: numbers in columns of their own, in the kept results as in what the bench
writes.
"""

import csv
from collections.abc import Callable
from pathlib import Path

import pytest
from kept import check_lines

pytest.importorskip("torch", reason="torch is not installed")

import testbed.kernels
from testbed.kernels.measure import bench_kernels
from testbed.kernels.measure.bench_kernels import CASES, Report
from testbed.kernels.measure.timing import Timing
from testbed.kernels.verify.reference import Shape

KEPT = Path(testbed.kernels.__file__).parent / "results" / "h200.csv"
TIMED = ("paging cost", "the paper's design", "by block size", "decode", "prefill", "swap")


def table(path: Path) -> list[dict[str, str]]:
    return list(
        csv.DictReader(line for line in path.read_text().splitlines() if not line.startswith("#"))
    )


def test_kept_numbers_match_their_prose() -> None:
    words = ""
    rows = [row for row in table(KEPT) if row["what"] in TIMED]
    for row in rows:
        words = row["measured"] or words
        time = float(row["median_us"])
        reported = {
            f"{t / 1e3:.2f} ms" if row["what"] == "swap" else f"{t:.1f} us"
            for t in (time - 5e-4, time + 5e-4)
        }
        assert any(text in words for text in reported), (
            row
        )  # the column is rounded to a thousandth before
    assert len(rows) == 160


class FakeInputs:
    """A batch whose kernels read at 4.15 TB/s after some microseconds of their own."""

    def __init__(self, pools: None, shape: Shape, lens: list[int]) -> None:
        self.shape, self.kv_bytes = shape, 4 * sum(lens) * shape.num_kv_heads * shape.head_size

    def __getattr__(self, kernel: str) -> Callable[[], Timing]:
        own = {"paged": 2.03, "contiguous": 1.5, "paper": 5.25, "sdpa": 1.5}[kernel]
        return lambda: Timing(*(own + us + self.kv_bytes / 4.15e6 for us in (0, -0.5, 1)))


def test_benchmark_writes_exactly_the_tables_that_are_kept(
    request, monkeypatch, tmp_path, capsys
) -> None:
    for name in ("DecodeInputs", "PrefillInputs"):
        monkeypatch.setattr(bench_kernels, name, FakeInputs)
    monkeypatch.setattr(bench_kernels, "time_graph", lambda timing: timing)
    report = Report()
    for bench in ("paging", "paper", "decode", "prefill"):
        getattr(bench_kernels, f"bench_{bench}")(report, None)
    report.add("right", "copy_blocks", "bit for bit")
    report.write(tmp_path, {"device": "a GPU", "date": "today"})
    texts = [
        capsys.readouterr().out,
        *((tmp_path / name).read_text() for name in ("h200.csv", "h200.md")),
    ]
    check_lines(texts, request, "bench.txt")
    written, kept = (
        table(tmp_path / "h200.csv")[:-1],
        [row for row in table(KEPT) if row["what"] in TIMED[:5]],
    )
    named = ("what", "case", "kernel", "spread", "batch", "context")
    assert [[row[name] for name in named] for row in written] == [
        [row[name] for name in named] for row in kept
    ]


def test_kept_times_of_cache_forms_meet_their_goals() -> None:
    rows = table(KEPT.with_name("h200-cache-forms.csv"))
    cases = [
        (row["kind"], int(row["batch"]), int(row["tokens"]), row["cache"], row["window"])
        for row in rows
    ]
    assert cases == [
        (kind, batch, tokens, "e4m3" if form.fp8 else "fp16", str(form.window or ""))
        for kind, _, batch, tokens, form, _, _ in CASES
    ]
    for row in rows:
        assert float(row["ratio"]) == pytest.approx(
            float(row["median_us"]) / float(row["base_us"]), rel=2e-3
        )
        assert not row["goal"] or float(row["ratio"]) <= float(row["goal"])
    assert sorted(row["goal"] for row in rows if row["goal"]) == [
        "0.6",
        "0.6",
        "1.1",
        "1.1",
        "1.1",
        "1.1",
    ]
