"""`import testbed`: the same runs as those of the command line; what they become is in the
transcripts.
"""

import json
import subprocess
import sys

import pandas as pd
import pytest
from tiny_run import without_id

import testbed as front
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec

SHORT = {"rate": 2, "duration_s": 30}


class UserPolicy(Paged):
    """A policy that no config names."""


def test_tables_equal_those_of_a_run_folder(testbed, tmp_path):
    testbed.done("run", "arrivals.rate=2", "arrivals.duration_s=30", "hydra.run.dir=a")
    result = front.simulate(**SHORT)
    written = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert without_id(json.loads(json.dumps(result.summary))) == without_id(written)
    for name, table in (("requests", result.requests), ("iterations", result.iterations)):
        written = pd.read_csv(tmp_path / "a" / f"{name}.csv", dtype={"rejected": str})
        if "rejected" in written:
            written["rejected"] = written["rejected"].fillna("")
        pd.testing.assert_frame_equal(written, table, check_dtype=False, check_exact=True)
    assert result.plot()._repr_png_().startswith(b"\x89PNG")
    assert "paged" in repr(result).lower()


def test_policy_object_brings_its_pool():
    pool = PoolSpec(4000, 2048)
    result = front.simulate(policy=UserPolicy(pool, block_size=8), **SHORT)
    run = result.summary["run"]
    assert (run["pool_slots"], run["pool_blocks"], run["block_size"]) == (4000, 500, 8)
    assert run["policy"] == "UserPolicy(block_size=8)"
    assert result.num_slots == 4000


def test_sweep_with_a_folder_reuses_finished_runs(tmp_path):
    first = front.sweep(rate=[1, 2], duration_s=10, folder=tmp_path, jobs=2)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/summary.json")}
    assert len(times) == 2
    pd.testing.assert_frame_equal(
        front.sweep(rate=[1, 2], duration_s=10, folder=tmp_path, jobs=1), first
    )
    again = front.sweep(rate=[1, 2], duration_s=10, jobs=1)
    pd.testing.assert_frame_equal(again, first[again.columns])
    assert times == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/summary.json")}


def test_import_loads_no_slow_package():
    slow = {"hydra", "pandas", "numpy", "testbed.experiments"}
    code = f"import sys, testbed; assert not {slow} & set(sys.modules); testbed.sweep"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert set(front.__all__) <= set(dir(front))
    with pytest.raises(AttributeError):
        front.simulat  # noqa: B018
