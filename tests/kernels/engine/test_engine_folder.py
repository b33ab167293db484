"""A run of the engine leaves a simulated run's folder: same columns and keys, and equal counts for equal plans."""

import csv

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("simpy", reason="SimPy is not installed")

import tiny_models as tiny  # noqa: E402
from test_engine_config import setup  # noqa: E402

from testbed.core.errors import InputError  # noqa: E402
from testbed.core.request import PS  # noqa: E402
from testbed.cost.model import WORK_COLUMNS, CostModel, Moved, Work, read_work, work_cells  # noqa: E402
from testbed.kernels.engine.records import MEASURED  # noqa: E402
from testbed.kernels.engine.serve import make_engine, serve_into  # noqa: E402
from testbed.memory.paged.paged import Paged  # noqa: E402
from testbed.metrics import summarize  # noqa: E402
from testbed.sched.preemption import Swap  # noqa: E402
from testbed.sim.recorder import request_columns, span_columns, with_identity  # noqa: E402
from testbed.sim.simulation import simulate  # noqa: E402


class OneSecond(CostModel):
    """As the tests' clock has it."""

    def iteration(self, work):
        return 10**12


@pytest.mark.parametrize(("num_seqs", "window_s"), [(1, None), (3, None), (1, (4.0, 25.0))])
def test_engine_and_simulator_agree_step_by_step(num_seqs, window_s):
    """Where an iteration takes the same time, both record the same: requests, spans, totals, summary."""
    lengths = [(30, 9), (7, 20), (50, 5), (3, 30), (40, 12), (12, 25)]
    spec = tiny.pool(160 if num_seqs > 1 else 96, 512)

    def scheduler(policy):
        return tiny.mixed(policy, Swap())

    window_ps = tuple(round(at * PS) for at in window_s) if window_s else None
    options = {"marks_ps": window_ps, "stop_ps": window_ps[1]} if window_s else {}
    requests = tiny.requests(lengths, num_seqs)
    ours = tiny.engine(spec=spec, scheduler=scheduler, window_s=window_s).serve(requests).recorder
    theirs = simulate(requests, scheduler(Paged(spec)), OneSecond(), 128, fast_forward=False, **options)
    assert summarize(ours, 96, window_ps) == summarize(theirs, 96, window_ps)
    assert (ours.end_ps == 25 * PS) == bool(window_s)
    assert ours.totals.swaps or window_s
    for name in ("requests", "spans"):
        got, want = getattr(ours, name).columns(), getattr(theirs, name).columns()
        assert {key: column.tolist() for key, column in got.items()} == {k: c.tolist() for k, c in want.items()}


def test_engine_folder_has_the_files_of_a_simulation(tmp_path):
    pd = pytest.importorskip("pandas")
    built = setup(tmp_path, window_s=[0.0, 100.0])
    engine = make_engine(built)
    assert serve_into(tmp_path / "out", built, engine)["engine"] == {"kind": "cpu", "fingerprint": None}
    recorder = engine.records.recorder
    for name, columns in (
        ("requests", with_identity(request_columns(recorder), built.workload.rows)),
        ("iterations", span_columns(recorder)),
    ):
        table = pd.DataFrame(columns)
        got = pd.read_csv(tmp_path / "out" / f"{name}.csv", keep_default_na=name != "requests")
        more = [*MEASURED, *WORK_COLUMNS] if name == "iterations" else []
        assert [*got.columns] == [*table.columns, *more]
        pd.testing.assert_frame_equal(got[[*table.columns]].astype(table.dtypes.to_dict()), table)
    rows = list(csv.DictReader((tmp_path / "out" / "iterations.csv").open()))
    assert [read_work(row) for row in rows] == [one.work for one in engine.records.iterations]


def test_work_is_read_back_from_its_columns():
    moves = (Moved("device", "host", 16, 3),)
    work = Work(3, 70, 40, 5, ((9, 0), (2, 30)), 4, ((16, 2),), moves, (("pages", 7),))
    assert read_work(dict(zip(WORK_COLUMNS, map(str, work_cells(work)), strict=True))) == work
    assert read_work(dict(zip(WORK_COLUMNS, work_cells(Work()), strict=True))) == Work()
    with pytest.raises(InputError, match="work_decode_seqs is missing"):
        read_work({})
