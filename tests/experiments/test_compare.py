"""`testbed compare`: finished runs side by side."""

import json
import shutil
import sys
from unittest import mock

import pandas as pd
import pytest
from omegaconf import OmegaConf

from testbed.core.errors import InputError
from testbed.core.request import PS
from testbed.cost.model import WORK_COLUMNS, Moved, Work
from testbed.experiments.commands.cli import main
from testbed.experiments.compare.comparison import compare
from testbed.experiments.compare.finished_run import SOFTWARE, cost_models, kind_of, read_run, read_runs, terms
from testbed.experiments.compare.tables import DISTRIBUTIONS, latencies

SHORT = ("arrivals.duration_s=20", "arrivals.rate=4")
RUNS = {"paged": (), "max": ("policy=contiguous_max",), "short": ("outputs=summary",)}
WORKS = [
    Work(decode_seqs=8, decode_context=4000, decode_max_context=900, num_requests=8),
    Work(decode_seqs=9, decode_context=4100, decode_max_context=901, num_requests=9),
    Work(prefill=((300, 0), (40, 100)), num_requests=2),
    Work(decode_seqs=2, decode_context=600, decode_max_context=400, prefill=((64, 0),), num_requests=3),
    Work(decode_seqs=2, decode_context=600, decode_max_context=400, moves=(Moved("device", "host", 16, 5),)),
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Folders of runs of the same requests; not to be changed."""
    folder = tmp_path_factory.mktemp("runs")
    with mock.patch.object(sys, "argv", sys.argv):
        for name, options in RUNS.items():
            assert main(["run", *SHORT, *options, f"hydra.run.dir={folder / name}"]) == 0
    return folder


@pytest.fixture
def pair(finished, testbed, tmp_path):
    """Copies of them in the working folder."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return tmp_path


def rows(comparison, group):
    """The values and the changes of a group's numbers, by name."""
    return {one.name: (values, comparison.changes(one))
            for one, values in comparison.numbers.items() if one.group == group}  # fmt: skip


def test_percentiles_equal_those_of_the_summary(pair):
    run = read_run("a", pair / "paged")
    found = compare([run, run])
    for key in DISTRIBUTIONS:
        assert latencies(run.requests)[key].quantile(0.99) == pytest.approx(run.summary[key]["p99"], rel=1e-9)
    assert [found.changes(one) for one in found.numbers] == [[0.0]] * len(found.numbers)
    assert found.differences.empty


def test_differences_and_changes_are_found(pair):
    found = compare(read_runs([str(pair / "paged"), f"other={pair / 'max'}"]))
    assert list(found.differences.columns) == ["paged", "other"]
    assert list(found.differences.index) == ["policy._target_", "policy.watermark"]
    first, other = (json.loads((pair / name / "summary.json").read_text()) for name in ("paged", "max"))
    values, changes = rows(found, "throughput")["requests"]
    a, b = (summary["throughput"]["requests_per_s"] for summary in (first, other))
    assert (values, changes) == ([a, b], [pytest.approx(100 * (b / a - 1))])
    (a, b), changes = rows(found, "memory per iteration")["internal fragmentation"]
    assert changes == [pytest.approx(b - a)]
    assert b - a > 10
    assert "all runs serve the same requests" in found.remarks


def test_a_run_without_tables_is_compared_by_its_summary(pair):
    found = compare(read_runs(["paged", "short"]))
    assert any("short has no requests.csv: run it again with outputs=full" in remark for remark in found.remarks)
    assert rows(found, "TTFT")["p50"][1] == [0]


def test_runs_of_different_requests_are_reported(pair):
    table = pd.read_csv(pair / "max" / "requests.csv")
    table.loc[3, "prompt_len"] += 1
    table.to_csv(pair / "max" / "requests.csv", index=False)
    assert "the runs do not serve the same requests" in compare(read_runs(["paged", "max"])).remarks
    table.iloc[:0].to_csv(pair / "max" / "requests.csv", index=False)
    assert not compare(read_runs(["paged", "max"])).remarks


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "summary.json").unlink(), "has no summary.json; the run is not finished"),
        (lambda folder: (folder / "summary.json").write_text("{"), "summary.json: cannot be read"),
        (lambda folder: (folder / "config.yaml").write_text("[]"), "config.yaml: contains no names and values"),
        (lambda folder: (folder / "requests.csv").write_text("request_id\n1\n"), "has no column arrival_s; another"),
        (shutil.rmtree, "no such folder"),
    ],
)
def test_bad_run_folders_are_refused_in_one_line(pair, testbed, spoil, message):
    spoil(pair / "max")
    assert message in testbed.refused("compare", "paged", "max", "--html", "x.html")
    assert not (pair / "x.html").exists()


def test_summary_of_an_older_version_is_read_and_reported(pair):
    summary = json.loads((pair / "max" / "summary.json").read_text())
    del summary["memory_free"]
    (pair / "max" / "summary.json").write_text(json.dumps(summary))
    found = compare(read_runs(["paged", "max"]))
    assert "max was written by another version: its summary.json has no memory_free" in found.remarks
    assert rows(found, "memory over time")["cached"][0][1] is None


def as_columns(work):
    values = [json.dumps(value) if isinstance(value, tuple) else value for value in work]
    return dict(zip(WORK_COLUMNS, values, strict=True))


def planted_gpu_run(simulated, folder):
    """A GPU run that took what the costs say, but prompts alone 25% longer, and software 2 ms more an iteration."""
    shutil.copytree(simulated, folder)
    path = folder / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "engine": {"kind": "gpu"}}))
    whole, kernels = cost_models(OmegaConf.to_container(OmegaConf.load(folder / "config.yaml")))
    table = []
    for i, work in enumerate(WORKS):
        gpu_s = kernels.iteration(work) / PS * (1.25 if kind_of(work) == "prompts" else 1)
        software_s = (whole.iteration(work) - kernels.iteration(work)) / PS + 2e-3
        shape = dict.fromkeys(("running", "live", "reserved", "internal"), 1)
        times = {"start_s": float(i), "duration_s": gpu_s + software_s, "gpu_s": gpu_s}
        table.append({**times, "iterations": 1, **shape, **as_columns(work)})
    (folder / "iterations.csv").unlink()
    pd.DataFrame(table).to_csv(folder / "iterations.csv.gz", index=False)
    return folder


def test_planted_cost_errors_are_found_term_by_term(pair, testbed):
    real = read_run("real", planted_gpu_run(pair / "paged", pair / "gpu"))
    found = {term.term: term for term in terms(read_run("simulated", pair / "paged"), real)}
    assert set(found) == {
        "kernels: decodes", "kernels: prompts", "kernels: decodes and prompts", "kernels: decodes, swaps", SOFTWARE
    }  # fmt: skip
    prompts = found.pop("kernels: prompts")
    software = found.pop(SOFTWARE)
    assert prompts.error_percent == pytest.approx(-20)
    assert software.error_s == pytest.approx(-2e-3 * len(WORKS))
    assert software.measured_s > 2e-3 * len(WORKS)
    assert [term.error_s for term in found.values()] == pytest.approx([0, 0, 0], abs=1e-9)
    errors = [abs(term.error_s) for term in terms(read_run("simulated", pair / "paged"), real)]
    assert errors == sorted(errors, reverse=True)
    output = testbed.done("compare", "gpu", "paged", "max", "--html", "x.html", "--csv", "x.csv")
    table = pd.read_csv(pair / "x.csv").query("run != 'gpu'").groupby("run")["reference"].unique()
    assert table.map(list).to_dict() == {"paged": ["gpu"], "max": ["paged"]}, "model error and effect are apart"
    assert "Cost terms of paged against gpu, the largest error first" in output
    assert "kernels: prompts" in (pair / "x.html").read_text()


def test_runs_without_cost_terms_are_still_compared(pair, testbed):
    folder = planted_gpu_run(pair / "paged", pair / "gpu")
    config = OmegaConf.to_container(OmegaConf.load(pair / "paged" / "config.yaml"))
    config["cost"] = {"_target_": "testbed.cost.profile.ProfileCost", "path": "gone.json", "choices": None}
    OmegaConf.save(OmegaConf.create(config), pair / "paged" / "config.yaml")
    output = testbed.done("compare", "paged", folder.name)
    assert "no cost terms of paged against gpu: cost: no profile gone.json" in output
    assert "All numbers" in output


def test_terms_without_gpu_times_are_refused(pair):
    path = planted_gpu_run(pair / "paged", pair / "gpu") / "iterations.csv.gz"
    pd.read_csv(path).drop(columns="gpu_s").to_csv(path, index=False)
    with pytest.raises(InputError, match="has no column gpu_s, so no cost term"):
        terms(read_run("simulated", pair / "paged"), read_run("real", path.parent))
