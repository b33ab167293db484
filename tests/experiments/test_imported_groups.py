"""AIConfigurator's tables of windows, latent attention and experts: rows held back, of small ones
and of an H200's.
"""

import os
from pathlib import Path

import numpy as np
import pytest
from import_fixtures import write_every_table
from refusals import refuses

from testbed.cost.sections import rows
from testbed.experiments.cli.main import call
from testbed.experiments.real.importers.aiconfigurator import from_tables, tables_of
from testbed.experiments.real.importers.imported import Requested
from testbed.experiments.studies import left_out

SHARED = Path(os.environ.get("TESTBED_SHARED", Path(__file__).parents[3] / "shared"))
FOLDER = SHARED / "data/aiconfigurator/systems/data/h200_sxm"
of_an_h200 = pytest.mark.skipif(
    not (FOLDER / "moe").is_dir(), reason="AIConfigurator's H200 tables are not there"
)
pytest.importorskip("pyarrow", reason="AIConfigurator's tables need the extra `parquet`")


@of_an_h200
def test_fp8_is_faster_in_full_attention_and_slower_in_a_window():
    tables = tables_of(FOLDER)
    tables["gemm"] = tables["gemm"].query("m in (1, 64, 1024, 8192)")
    found = {
        (name, n): from_tables(FOLDER, tables, Requested(name, None, 1, kv_dtype_bytes=n)).profile()
        for name in ("llama-3.1-8b", "gpt-oss-120b")
        for n in (1, 2)
    }
    full, small = (
        [dict(rows(found[name, n], section)) for n in (1, 2)]
        for name, section in (
            ("llama-3.1-8b", "decode_attention"),
            ("gpt-oss-120b", "window_decode_attention"),
        )
    )
    assert full[1][32, 32 * 16384] / full[0][32, 32 * 16384] == pytest.approx(1.43, abs=0.005)
    assert small[0][1, 8192] > small[1][1, 8192]


def test_every_third_row_is_held_back_and_predicted(tmp_path, monkeypatch, capsys):
    models = ["gpt-oss-20b", "deepseek-v3", "qwen3-next-80b-a3b", "gemma-2-27b"]
    monkeypatch.setattr(left_out, "model_names", lambda: models)
    held = list(left_out.held_back(write_every_table(tmp_path), 3))
    monkeypatch.setattr(
        "testbed.experiments.studies.left_out_tables.held_back", lambda folder, every: held
    )
    call("validate costs", [str(tmp_path), "--held-back", "3"])
    output = " ".join(capsys.readouterr().out.split())
    assert {row.kind for row in held} >= {"experts", "latent", "state", "fp8, decode"}
    for kind, section in {(row.kind, row.section) for row in held}:
        rows = [row.error for row in held if (row.kind, row.section) == (kind, section)]
        errors = [abs(error) for error in rows if error is not None]
        counts = f"{kind} {section} {len(errors)} {len(rows) - len(errors)}"
        assert f"{counts} {100 * np.median(errors):.1f}%" in output if errors else counts in output
    experts = [abs(row.error) for row in held if row.kind == "experts"]
    assert max(experts) < 0.03  # their formula is almost linear
    refuses(
        "takes one folder of AIConfigurator's, and at least 2",
        call,
        "validate costs",
        ["--held-back", "3"],
    )


@of_an_h200
def test_held_back_rows_are_predicted_within_the_errors_that_the_page_reports(monkeypatch):
    monkeypatch.setattr(left_out, "model_names", lambda: ["gpt-oss-20b", "deepseek-v3"])
    errors = {}
    for row in left_out.held_back(FOLDER, 5):
        if row.error is not None:
            errors.setdefault((row.kind, row.section), []).append(100 * abs(row.error))
    goals = {
        ("latent", "decode_attention"): (1, 2),
        ("fp8, window", "window_decode_attention"): (2, 6),
        ("16-bit, window", "window_decode_attention"): (2, 6),
        ("latent", "prefill_attention"): (2, 12),
        ("fp8, decode", "decode_attention"): (2, 9),
        ("experts", "experts"): (4, 15),
    }
    for key, (median, p90) in goals.items():
        assert np.median(errors[key]) < median
        assert np.percentile(errors[key], 90) < p90
