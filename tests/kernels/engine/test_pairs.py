"""The pairs, rehearsed on a CPU: run folders, software times, the simulated side from the same configs, the table."""

import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("simpy", reason="SimPy is not installed")
pytest.importorskip("pandas", reason="pandas is not installed")

import tiny_models  # noqa: E402, F401  (one thread)

from experiments.compare.finished_run import FinishedRun  # noqa: E402
from experiments.validation import pairs as validation  # noqa: E402
from experiments.validation.decode_lines import decode_lines, renewed  # noqa: E402
from experiments.validation.pair_figure import AT_ONE_RATE, BY_RATE, draw  # noqa: E402
from experiments.validation.pair_table import KINDS, Pair, Side  # noqa: E402
from kernels.engine.pairs import __main__ as command  # noqa: E402
from kernels.engine.pairs.plan import PAIRS, device, rehearsal  # noqa: E402
from kernels.engine.pairs.software import FIELDS, read_software  # noqa: E402
from kernels.engine.run_folder import write_csv  # noqa: E402
from testbed.core.errors import InputError  # noqa: E402


def test_what_the_runs_leave_is_simulated_and_compared(tmp_path, capsys):
    stage = replace(rehearsal(), seconds=0.2, batches=(1, 2), warm=(5,))
    chosen = command.chosen("paged-80,contiguous-pow2")
    assert command.run_pairs(chosen, stage, tmp_path, 60.0) == []
    with tarfile.open(tmp_path / command.ARCHIVE) as archive:
        assert {"pairs/paged-80/summary.json", "pairs/software-opt-13b.csv"} <= set(archive.getnames())
        archive.extractall(tmp_path / "kept", filter="data")
    table, kept = tmp_path / "table.md", tmp_path / "kept" / "pairs"
    table.write_text("# Kept\n\n## The simulation beside it\n\nold\n")
    arguments = ["--runs", str(kept), "--table", str(table)]
    validation.main(arguments)
    text = table.read_text()
    assert text.startswith("# Kept\n\n## The simulation beside it\n\n`python -m")
    assert "\nold\n" not in text
    assert text.count("| ShareGPT, paged at 80%") == 4  # errors by two profiles, cost terms, levels
    validation.main(arguments)
    assert table.read_text() == text  # the same rows give the same table


def test_a_simulated_run_has_the_requests_of_the_real_one(tmp_path):
    from kernels.engine.config import make_requests

    for pair in PAIRS:
        config = pair.config(rehearsal())
        config["cost"] = {"_target_": "testbed.cost.analytic.AnalyticCost", "efficiencies": None}
        assert make_requests(config) == list(workload(config))


def workload(config):
    from omegaconf import OmegaConf

    from experiments.runs.workload import make_workload

    return make_workload(OmegaConf.create(config))


def test_pairs_are_those_that_were_asked_for():
    assert len({pair.name for pair in PAIRS}) == len(PAIRS) >= 10
    assert all(pair.model in device().models for pair in PAIRS)
    with pytest.raises(InputError, match="unknown pair quick: choose from paged-50"):
        command.chosen("quick")


def test_a_pair_that_fails_is_named(tmp_path, monkeypatch, capsys):
    def broken(*_):
        raise InputError("no weights")

    monkeypatch.setattr(command, "prepared", broken)
    assert command.run_pairs(command.chosen("azure"), rehearsal(), tmp_path, 60.0) == ["azure"]
    assert "no weights" in capsys.readouterr().out


SUMMARY = {
    "batch": {"mean_over_time": 3.0},
    "normalized_latency_s_per_token": {"mean": 0.02},
    "memory": {kind: {"over_time": 0.25} for kind in KINDS},
}


def test_the_figure_shows_both_sides_of_every_system():
    side = Side(SUMMARY, ())
    names = {*AT_ONE_RATE, *BY_RATE}
    real = FinishedRun("real", Path(), {"arrivals": {"rate": 2.0}}, SUMMARY, None, None)
    pairs = {name: Pair(name, name, real, side, side) for name in names}
    figure = draw(pairs)
    batch, latency, memory = figure.axes
    assert [len(batch.patches), len(memory.patches)] == [8, 2 * 4 * 4]
    assert sum(bool(bar.get_hatch()) for bar in batch.patches) == 4
    assert len(latency.lines) == 8
    del pairs["paged-95"]
    with pytest.raises(InputError, match="needs the run paged-95"):
        draw(pairs)


def test_the_table_of_decodes_is_made_of_kept_rows(tmp_path):
    head = "model,batch,duration_us,gpu_us,host_us,idle_share,over_kernels,bytes_us,of_bytes"
    (tmp_path / "decodes-small.csv").write_text(f"# a GPU\n{head}\nsmall,8,10.4,9.6,1,0.019,0.9,5,0.52\n")
    (tmp_path / "decodes-large.csv").write_text(f"# a GPU\n{head}\nlarge,1,20,19,1,0.05,0.9,9,0.5\n")
    table = decode_lines(tmp_path)
    assert table[2:] == [
        "| large | 1 | 20 | 19 | 1 | 5.0% | 0.900 | 0.500 |",
        "| small | 8 | 10 | 10 | 1 | 1.9% | 0.900 | 0.520 |",
    ]
    page = "\n".join(["before", table[0], "|---|", "| old |", "", "| other |"])
    assert renewed(page, table) == "\n".join(["before", *table, "", "| other |"])
    assert renewed("no table", table) == "no table"
    assert decode_lines(tmp_path / "nowhere") == []


def test_software_time_is_a_line_through_what_was_measured(tmp_path):
    rows = [[n, 44, 0.0, 0.0, 0.0, 300 + 5 * n] for n in (1, 8, 32)]
    write_csv(tmp_path / "software.csv", FIELDS, rows)
    assert read_software(tmp_path / "software.csv") == (pytest.approx(300e-6), pytest.approx(5e-6))
