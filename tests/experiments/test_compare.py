"""`testbed compare` refuses folders that are no finished runs; what it shows of others is in the
transcripts.
"""

import json
import shutil

import pytest
from tiny_run import tiny_run

from testbed.experiments.look.compare.finished_run import read_run
from testbed.experiments.look.compare.tables import charts


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run; not to be changed."""
    return tiny_run(tmp_path_factory.mktemp("runs") / "run", "outputs=tables")


def without_slots(folder):
    """As if another version had written the summary of a fleet."""
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(summary | {"engines": {"0": {}}}))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda folder: (folder / "summary.json").unlink(),
            "has no summary.json; the run is not finished",
        ),
        (lambda folder: (folder / "summary.json").write_text("{"), "summary.json: cannot be read"),
        (lambda folder: (folder / "summary.json").write_text("{}"), "has no key batch; another"),
        (without_slots, "has no key engines.0.pool_slots; another"),
        (
            lambda folder: (folder / "config.yaml").write_text("[]"),
            "config.yaml: contains no names and values",
        ),
        (
            lambda folder: (folder / "requests.csv").write_text("request_id\n1\n"),
            "has no column arrival_s; another",
        ),
        (shutil.rmtree, "no such folder"),
    ],
)
def test_bad_run_folders_are_refused_in_one_line(finished, testbed, tmp_path, spoil, message):
    for name in ("whole", "spoilt"):
        shutil.copytree(finished, tmp_path / name)
    spoil(tmp_path / "spoilt")
    assert message in testbed.refused("compare", "whole", "spoilt", "--html", "x.html")
    assert not (tmp_path / "x.html").exists()


def test_latencies_are_drawn_in_the_unit_of_the_tables(finished):
    run = read_run("run", finished)
    curves = {chart.x_label: chart.series[0].x for chart in charts([run])}
    assert max(curves["TTFT (s)"]) == run.requests["ttft_s"].max()
    assert max(curves["TPOT (s/token)"]) == run.requests["tpot_s"].max()
