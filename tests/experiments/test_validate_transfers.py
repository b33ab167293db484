"""The engine's swaps, stores and loads against their simulation, on kept rows; kept all-reduces against the model."""

from pathlib import Path

import pytest

import testbed.kernels
from testbed.core.errors import InputError
from testbed.experiments.commands.validations import validate_transfers
from testbed.experiments.validation.transfers import engine_transfers

RESULTS = Path(testbed.kernels.__file__).resolve().parent / "results"
RUNS = sorted(path.parent for path in (RESULTS / "engine" / "swaps").glob("*/swaps.csv"))


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_simulated_transfers_take_what_the_engine_s_took(run, monkeypatch):
    """All transfers of a run together within 10%."""
    monkeypatch.chdir(RESULTS.parents[1])  # the config names the requests from here
    lines = engine_transfers(run)
    measured, simulated = (sum(float(line[at].split()[0]) for line in lines) for at in (4, 6))
    assert simulated == pytest.approx(measured, rel=0.1)
    assert len(lines) == 2, "both ways are compared"
    assert sum(int(line[2]) for line in lines) >= 80


def test_both_tables_are_printed(monkeypatch, capsys):
    monkeypatch.chdir(RESULTS.parents[1])
    validate_transfers([str(RUNS[0])])
    printed = capsys.readouterr().out
    assert "held back" in printed
    assert f"{RUNS[0].name}  in" in printed
    with pytest.raises(InputError, match="--gpu l4: names no measured transfers"):
        validate_transfers(["--gpu", "l4"])
