"""The engine's swaps against their simulation, on kept rows; the kept all-reduces against the model in use."""

import csv
from pathlib import Path

import pytest

import testbed.kernels
from testbed.core.errors import InputError
from testbed.core.specs import ServerSpec
from testbed.cost.sections import read_profile
from testbed.cost.transfers import all_reduce
from testbed.experiments.commands.validate_transfers import main
from testbed.experiments.importers.known_shapes import gpu_named
from testbed.experiments.validation.transfers import engine_swaps

RESULTS = Path(testbed.kernels.__file__).resolve().parent / "results"
RUNS = sorted(path.parent for path in (RESULTS / "engine" / "swaps").glob("*/swaps.csv"))


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_simulated_swaps_take_what_the_engine_s_took(run, monkeypatch):
    """All transfers of a run together within 10%."""
    monkeypatch.chdir(RESULTS.parents[1])  # the config names the requests from here
    lines = engine_swaps(run)
    measured, simulated = (sum(float(line[at].split()[0]) for line in lines) for at in (4, 6))
    assert simulated == pytest.approx(measured, rel=0.1)
    assert all(int(line[2]) >= 40 for line in lines)


def test_both_tables_are_printed(monkeypatch, capsys):
    monkeypatch.chdir(RESULTS.parents[1])
    main([str(RUNS[0])])
    printed = capsys.readouterr().out
    assert "held back" in printed
    assert f"{RUNS[0].name}  in" in printed
    with pytest.raises(InputError, match="--gpu l4: names no measured transfers"):
        main(["--gpu", "l4"])


def test_kept_all_reduces_give_the_predictions_beside_them():
    """Four GPUs from the rows of two, by the cost model's rule, as the file has them."""
    lines = (RESULTS / "h200-all-reduce.csv").read_text().splitlines()
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    assert {row["num_gpus"] for row in rows} == {"2"}
    assert {(row["dtype"], row["way"]) for row in rows} >= {
        (t, w) for t in ("fp16", "bf16") for w in ("eager", "graph")
    }
    graphs = [row for row in rows if (row["dtype"], row["way"]) == ("fp16", "graph")]
    points = [[2, int(row["bytes"]), float(row["median_us"])] for row in graphs]
    section = {"axes": ["num_gpus", "bytes"], "points": points}
    predict = all_reduce({"sections": {"all_reduce": section}}, ServerSpec("s", gpu_named("h200"), 4))
    known = {size: us for _, size, us, *_ in read_profile("h200-llama-3-70b-tp4")["sections"]["all_reduce"]["points"]}
    kept = [line[2:].split(",") for line in lines if line.startswith("# 4,")]
    assert len(kept) == len(known)
    for _, size, measured, predicted, error in kept:
        assert float(measured) == pytest.approx(known[int(size)], abs=0.051)
        assert float(predicted) == pytest.approx(predict(int(size)) / 1e6, abs=0.06)
        assert float(error) == pytest.approx(100 * (predict(int(size)) / 1e6 / known[int(size)] - 1), abs=0.06)
