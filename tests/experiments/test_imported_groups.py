"""AIConfigurator's tables of windows, latent attention and experts, of an H200."""

import os
from pathlib import Path

import pytest

from testbed.cost.sections import rows
from testbed.experiments.real.importers.aiconfigurator import from_tables, tables_of
from testbed.experiments.real.importers.imported import Requested

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
