"""A run of the engine leaves a simulated run's folder: same columns and keys, and equal counts for equal plans."""

import csv
import gzip
import json

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("simpy", reason="SimPy is not installed")

import tiny_models as tiny  # noqa: E402
from test_engine_config import run_config  # noqa: E402

from kernels.engine.config import make_run  # noqa: E402
from kernels.engine.run_folder import MEASURED  # noqa: E402
from testbed.core.errors import InputError  # noqa: E402
from testbed.cost.model import CostModel, Moved, Work  # noqa: E402
from testbed.cost.work_table import WORK_COLUMNS, read_work, work_cells  # noqa: E402
from testbed.memory.paged.paged import Paged  # noqa: E402
from testbed.metrics import summarize  # noqa: E402
from testbed.sched.preemption import Swap  # noqa: E402
from testbed.sim.simulation import simulate  # noqa: E402


class OneSecond(CostModel):
    """As the tests' clock has it."""

    def iteration(self, work):
        return 10**12


@pytest.mark.parametrize("num_seqs", [1, 3])
def test_engine_and_simulator_agree_step_by_step(num_seqs):
    """Where an iteration takes the same time, both record the same: requests, spans, totals, summary."""
    lengths = [(30, 9), (7, 20), (50, 5), (3, 30), (40, 12), (12, 25)]
    spec = tiny.pool(160 if num_seqs > 1 else 96, 512)

    def scheduler(policy):
        return tiny.mixed(policy, Swap())

    ours = tiny.engine(spec=spec, scheduler=scheduler).serve(tiny.requests(lengths, num_seqs)).recorder
    theirs = simulate(tiny.requests(lengths, num_seqs), scheduler(Paged(spec)), OneSecond(), 128, fast_forward=False)
    assert summarize(ours, 96) == summarize(theirs, 96)
    assert ours.totals.swaps > 0
    for name in ("requests", "spans"):
        got, want = getattr(ours, name).columns(), getattr(theirs, name).columns()
        assert {key: column.tolist() for key, column in got.items()} == {k: c.tolist() for k, c in want.items()}


def test_folder_has_a_simulated_runs_files(tmp_path):
    pd = pytest.importorskip("pandas")
    from experiments.runs import run_tables

    config = run_config(tmp_path, window_s=[0.0, 100.0])
    run = make_run(config)
    run.carry_out(tmp_path / "out")
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["engine"] == {"kind": "cpu", "fingerprint": None}
    recorder = run.engine.records.recorder
    for name, table in (("requests", run_tables.requests(recorder)), ("iterations", run_tables.spans(recorder))):
        got = pd.read_csv(tmp_path / "out" / f"{name}.csv", keep_default_na=name != "requests")
        more = [*MEASURED, *WORK_COLUMNS] if name == "iterations" else []
        assert [*got.columns] == [*table.columns, *more]
        pd.testing.assert_frame_equal(got[[*table.columns]].astype(table.dtypes.to_dict()), table)
    rows = list(csv.DictReader((tmp_path / "out" / "iterations.csv").open()))
    assert [read_work(row) for row in rows] == [one.work for one in run.engine.records.iterations]
    assert all(float(r["host_s"]) + float(r["wait_s"]) <= float(r["duration_s"]) * 1.2 + 1e-4 for r in rows)
    assert json.loads((tmp_path / "out" / "config.yaml").read_text()) == config


def test_packed_tables_are_the_same_bytes_every_time(tmp_path):
    run = make_run(run_config(tmp_path))
    run.carry_out(tmp_path / "a", packed=True)
    text = gzip.decompress((tmp_path / "a" / "requests.csv.gz").read_bytes()).decode()
    assert text.startswith("request_id,arrival_s,first_token_s,finish_s")
    assert len(text.splitlines()) == 4


def test_work_survives_the_table():
    moves = (Moved("device", "host", 16, 3),)
    work = Work(3, 70, 40, 5, ((9, 0), (2, 30)), 4, ((16, 2),), moves, (("pages", 7),))
    assert read_work(dict(zip(WORK_COLUMNS, map(str, work_cells(work)), strict=True))) == work
    assert read_work(dict(zip(WORK_COLUMNS, work_cells(Work()), strict=True))) == Work()
    with pytest.raises(InputError, match="work_decode_seqs is missing"):
        read_work({})
