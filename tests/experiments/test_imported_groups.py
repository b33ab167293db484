"""AIConfigurator's H200 tables of fp8 K and V, windows, latent attention, experts and states, where they are."""

import os
from pathlib import Path

import numpy as np
import pytest

from testbed.core.shapes import read_model
from testbed.cost.model import UNBOUNDED, WindowReads, Work
from testbed.cost.profile import ProfileCost
from testbed.cost.sections import rows
from testbed.description import origin
from testbed.experiments.importers.aiconfigurator import from_tables, tables_of
from testbed.experiments.importers.imported import Requested
from testbed.experiments.validation import left_out

SHARED = Path(os.environ.get("TESTBED_SHARED", Path(__file__).parents[3] / "shared"))
FOLDER = SHARED / "data/aiconfigurator/systems/data/h200_sxm"
pytestmark = pytest.mark.skipif(not (FOLDER / "moe").is_dir(), reason="AIConfigurator's H200 tables are not there")
pytest.importorskip("pyarrow", reason="AIConfigurator's tables need the extra `parquet`")


@pytest.fixture(scope="module")
def tables():
    found = tables_of(FOLDER)
    found["gemm"] = found["gemm"].query("m in (1, 64, 1024, 8192)")
    return found


def imported(tables, name, **more):
    return from_tables(FOLDER, tables, Requested(name, None, more.pop("num_gpus", 1), **more))


def test_fp8_is_faster_in_full_attention_and_slower_in_a_window(tables):
    found = {n: dict(rows(imported(tables, "llama-3.1-8b", kv_dtype_bytes=n).profile(), "decode_attention"))
             for n in (1, 2)}  # fmt: skip
    assert found[2][32, 32 * 16384] / found[1][32, 32 * 16384] == pytest.approx(1.43, abs=0.005)
    small = {n: dict(rows(imported(tables, "gpt-oss-120b", kv_dtype_bytes=n).profile(), "window_decode_attention"))
             for n in (1, 2)}  # fmt: skip
    assert small[1][1, 8192] > small[2][1, 8192]


def test_a_run_reads_the_rows_of_every_part(tables):
    model = read_model("gpt-oss-120b")
    profile = imported(tables, "gpt-oss-120b").profile()
    cost = ProfileCost(model, None, profile)
    n, mean = 32, 2048
    reads = WindowReads(128, n * 128, 0, UNBOUNDED)
    short = cost.iteration(Work(n, n * mean, mean, windows=(reads,)))
    long = cost.iteration(Work(n, n * 8192, 8192, windows=(reads,)))
    full = dict(rows(profile, "decode_attention"))
    assert long - short == pytest.approx(18 * (full[n, n * 8192] - full[n, n * mean]), rel=1e-6)
    assert 0.1 < 36 * dict(rows(profile, "experts"))["balanced", n] / short < 0.95


@pytest.mark.parametrize(("name", "num_gpus", "text"), [
    ("deepseek-v3", 8, ""),
    ("qwen3-next-80b-a3b", 2, ", but experts by roofline"),
    ("nemotron-h-8b", 1, ", but state by roofline"),
    ("gemma-2-27b", 1, ", but window by full attention's times"),
])  # fmt: skip
def test_what_no_table_has_is_said(tables, name, num_gpus, text):
    found = imported(tables, name, num_gpus=num_gpus)
    cost = ProfileCost(read_model(name), None, found.profile())
    assert origin(cost, {}).startswith(f"imported from AIConfigurator on NVIDIA H200{text};")
    assert cost.iteration(Work(prefill=((512, 0),))) > 0


def test_held_back_rows_are_predicted_within_the_errors_that_the_page_reports(monkeypatch):
    monkeypatch.setattr(left_out, "model_names", lambda: ["gpt-oss-20b", "deepseek-v3"])
    errors = {}
    for row in left_out.held_back(FOLDER, 5):
        if row.error is not None:
            errors.setdefault((row.kind, row.section), []).append(100 * abs(row.error))
    goals = {("latent", "decode_attention"): (1, 2), ("fp8, window", "window_decode_attention"): (2, 6),
             ("16-bit, window", "window_decode_attention"): (2, 6), ("latent", "prefill_attention"): (2, 12),
             ("fp8, decode", "decode_attention"): (2, 9), ("experts", "experts"): (4, 15)}  # fmt: skip
    for key, (median, p90) in goals.items():
        assert np.median(errors[key]) < median
        assert np.percentile(errors[key], 90) < p90
