"""The pairs, rehearsed on a CPU: run folders, software times, the simulated side from the same configs, the table."""

import tarfile
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("simpy", reason="SimPy is not installed")
pytest.importorskip("pandas", reason="pandas is not installed")

import tiny_models  # noqa: E402, F401  (one thread)

from testbed.core.errors import InputError  # noqa: E402
from testbed.experiments.commands import validate_pairs  # noqa: E402
from testbed.kernels.engine.pairs import run  # noqa: E402
from testbed.kernels.engine.pairs.plan import (  # noqa: E402
    PAIRS,
    chosen,
    device,
    rehearsal,
)
from testbed.kernels.engine.pairs.software import FIELDS, read_software  # noqa: E402
from testbed.kernels.engine.run_folder import write_csv  # noqa: E402


def test_engine_runs_are_simulated_and_compared(tmp_path, capsys):
    stage = replace(rehearsal(), seconds=0.2, batches=(1, 2), warm=(5,))
    some = chosen("paged-80,contiguous-pow2")
    assert run.run_pairs(some, stage, tmp_path, 60.0) == []
    with tarfile.open(tmp_path / run.ARCHIVE) as archive:
        assert {"pairs/paged-80/summary.json", "pairs/software-tiny-opt.csv"} <= set(archive.getnames())
        archive.extractall(tmp_path / "kept", filter="data")
    capsys.readouterr()
    arguments = ["--runs", str(tmp_path / "kept" / "pairs")]
    validate_pairs.main(arguments)
    text = capsys.readouterr().out
    assert text.startswith("`testbed pairs`")
    assert text.count("| ShareGPT, paged at 80%") == 4  # errors by two profiles, cost terms, levels
    validate_pairs.main(arguments)
    assert capsys.readouterr().out == text  # the same rows give the same table


def test_pairs_are_chosen_by_name():
    assert len({pair.name for pair in PAIRS}) == len(PAIRS) >= 10
    assert all(pair.model in device().models for pair in PAIRS)
    with pytest.raises(InputError, match=r"pair quick: is unknown .choose from paged-50"):
        chosen("quick")


def test_failing_pair_is_named(tmp_path, monkeypatch, capsys):
    def broken(*_):
        raise InputError("no weights")

    monkeypatch.setattr(run, "prepared", broken)
    assert run.run_pairs(chosen("azure"), rehearsal(), tmp_path, 60.0) == ["azure"]
    assert "no weights" in capsys.readouterr().out


def test_software_time_is_a_linear_fit(tmp_path):
    rows = [[n, 44, 0.0, 0.0, 0.0, 300 + 5 * n] for n in (1, 8, 32)]
    write_csv(tmp_path / "software.csv", FIELDS, rows)
    assert read_software(tmp_path / "software.csv") == (pytest.approx(300e-6), pytest.approx(5e-6))
