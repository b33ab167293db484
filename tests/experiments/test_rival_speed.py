"""The comparison of `testbed bench` with AISimulate, which need not be installed here."""

import csv
import json

import numpy as np
import pytest

from testbed.core.request import PS, Rows, Workload
from testbed.experiments.cli.main import call
from testbed.experiments.runs import rival_speed, simulator_speed
from testbed.experiments.runs.rival_speed import Served


@pytest.fixture
def workload():
    rows = Rows(np.array([33, 5, 16]), np.array([4, 2, 7]))
    return Workload(rows, np.array([0, PS // 2, 3 * PS]))


def test_both_simulators_get_the_same_requests(workload, tmp_path):
    files = rival_speed.write_requests(workload, tmp_path)
    ours = [*csv.DictReader(files["all.csv"].open())]
    theirs = [json.loads(line) for line in files["all.jsonl"].read_text().splitlines()]
    for row, other, (prompt, output, at_s) in zip(
        ours, theirs, [(33, 4, 0), (5, 2, 0.5), (16, 7, 3)], strict=True
    ):
        assert (int(row["input_tokens"]), int(row["output_tokens"])) == (prompt, output)
        assert (other["input_length"], other["output_length"]) == (prompt, output)
        assert float(row["arrival_s"]) * 1000 == other["timestamp"] == at_s * 1000
    ids = [one for row in theirs for one in row["hash_ids"]]
    assert ids == [*range(3 + 1 + 1)]  # blocks of 16, and no content twice
    spec = json.loads(files["spec"].read_text())
    assert spec["traffic"]["trace_paths"] == [str(files["all.jsonl"])]


@pytest.mark.parametrize("ours", rival_speed.OURS)
def test_fixed_times_make_every_iteration_equally_long(ours, workload, tmp_path):
    """Three requests, each alone: 20 ms for the prompt, 20 ms for every further token."""
    files = rival_speed.write_requests(workload, tmp_path)
    served = rival_speed.serve(ours, str(files["all.csv"]))
    assert served.e2e_ms == pytest.approx(20 * np.mean([4, 2, 7]))
    assert served.cpu_s > 0


def test_bench_compares_where_an_interpreter_has_aisimulate(monkeypatch, capsys):
    monkeypatch.setattr(simulator_speed, "fastest", lambda *_: simulator_speed.Speed(10, 1.0))
    monkeypatch.setattr(rival_speed, "_by_rival", lambda python, spec: Served(0.5, 70.0))
    monkeypatch.setattr(rival_speed, "_by_us", lambda ours, files: Served(0.25, 70.0))
    call("bench", ["--requests", "10", "--repeats", "2", "--aisimulate", "python-of-aisimulate"])
    rows = capsys.readouterr().out.splitlines()[-6:]
    assert [row.split()[-1] for row in rows] == ["1.00", "2.00", "2.00"] * 2
    assert rival_speed.interpreter("another") == "another"
