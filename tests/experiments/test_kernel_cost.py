"""Figure 18a reads the columns of the kernels' bench, never its words."""

import io
from importlib import resources

import pandas as pd
from refusals import refuses

from testbed.experiments.paper.studies import block_sizes

KEPT = (resources.files("testbed.kernels") / "results" / "h200.csv").read_text(encoding="utf-8")
PAGED = {(8, 64): 5.64, (8, 128): 7.99, (8, 256): 12.621, (32, 64): 13.511, (32, 128): 22.7, (32, 256): 40.949}
PAPER = {(8, 64): 6.447, (8, 128): 9.364, (8, 256): 15.204, (32, 64): 14.634, (32, 128): 25.51, (32, 256): 47.195}


def test_kernel_times_are_read_from_columns_not_prose(tmp_path, monkeypatch):
    about, _, body = KEPT.partition("\n")
    without_words = pd.read_csv(io.StringIO(body), dtype=str).assign(case="", measured="").to_csv(index=False)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "bench.csv").write_text(f"{about}\n{without_words}")
    monkeypatch.setattr(block_sizes.resources, "files", lambda package: tmp_path)
    rows = block_sizes.measured_kernels(None, "bench.csv")
    times = {(row["system"], row["batch"], row["context"]): row["simulated"] for row in rows}
    assert len(times) == len(rows) == 18
    assert {shape: times["paged", *shape] for shape in PAGED} == PAGED
    assert {shape: times["paper", *shape] for shape in PAPER} == PAPER


def test_table_without_time_columns_is_refused(tmp_path, monkeypatch):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "bench.csv").write_text("what,case,measured\npaging cost,8x64,5.7 us paged\n")
    monkeypatch.setattr(block_sizes.resources, "files", lambda package: tmp_path)
    refuses(r"results/bench\.csv", block_sizes.measured_kernels, None, "bench.csv")
