"""Loads that the engine serves on a CPU, beside their simulation with a profile."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import tiny_models  # noqa: F401  (one thread)
from arithmetic_profile import arithmetic_profile
from tiny_engine import ON_CPU, SMALL

from testbed.core.errors import InputError
from testbed.core.specs import ModelSpec
from testbed.cost.sections import dump, read_profile
from testbed.experiments.runs.compose import configured
from testbed.experiments.studies import engine_loads
from testbed.experiments.studies.engine_loads import Figures, Load
from testbed.run.simulate import run

SPEC = ModelSpec("small", 1, 16, 2, 2, 8, 16, 2, 61, 2048, True)
DEVICE = "NVIDIA H100 80GB HBM3"
KEPT = Path(engine_loads.__file__).parents[2] / "kernels" / "results" / "engine" / "loads"
LOADS = [Load("ahead", 20.0), Load("in turn", 20.0)]


@pytest.fixture
def folder(tmp_path):
    profile = arithmetic_profile(model=SPEC, overhead=None)
    profile["fingerprint"] |= {"device": DEVICE, "system": "this project's engine"}
    (tmp_path / engine_loads.PROFILE).write_text(dump(profile))
    return tmp_path


def words(profile):
    common = engine_loads.common_words("opt-13b", read_profile(profile))
    return [*common, *SMALL, "arrivals.duration_s=0.2"]


def test_served_loads_are_simulated_by_the_same_words(folder, capsys):
    profile = engine_loads.calibrated("opt-13b", folder)  # is there, so that no GPU is asked for
    common = words(profile)
    engine_loads.serve_loads(LOADS, common, ON_CPU, folder, float("inf"))
    rows = list(engine_loads.compared(LOADS, common, profile, folder))
    assert [load for load, *_ in rows] == LOADS
    for load, real, ours in rows:
        served, simulated = (
            json.loads((folder / load.folder / name).read_text())
            for name in ("summary.json", "simulated.json")
        )
        assert served["requests"] == simulated["requests"]
        assert served["requests"]["finished"] > 0
        assert real.tpot_s > ours.tpot_s > 0  # a CPU is slower than the profile's GPU
    text = "\n".join(engine_loads.table(rows))
    assert text.count("| 20 |") == 2
    *_, last = engine_loads.computing(LOADS, common, profile, folder)
    cells = last.split("|")[3:5]
    rows = pd.read_csv(folder / LOADS[-1].folder / "iterations.csv")
    sums = rows.duration_s.groupby(rows.prefill_tokens > 0).sum()
    assert [float(cell.split("/")[0]) for cell in cells] == pytest.approx(sums, abs=1e-3)


def test_loads_that_are_there_are_not_served_again(folder, monkeypatch):
    for load in LOADS:
        (folder / load.folder).mkdir()
        (folder / load.folder / "summary.json").write_text("{}")
    engine_loads.serve_loads(LOADS, ["no words"], ON_CPU, folder, float("inf"))


def test_no_run_begins_without_time(folder, capsys):
    common = words(folder / engine_loads.PROFILE)
    engine_loads.serve_loads(LOADS, common, ON_CPU, folder, 0.0)
    assert capsys.readouterr().out.count("no time is left") == 2
    assert not list(engine_loads.compared(LOADS, common, folder / engine_loads.PROFILE, folder))


def test_errors_beyond_their_limits_are_bold():
    rows = [
        (Load("ahead", 6.0), Figures(0.010, 0.020, 100), Figures(0.0102, 0.0221, 111)),
        (Load("ahead", 12.0), Figures(0.010, 0.020, 0), Figures(0.0104, 0.0300, 5)),
    ]
    *_, first, second = engine_loads.table(rows)
    assert first == (
        "| ahead | 6 | 10.00 / 10.20, +2.0% | **20.00 / 22.10, +10.5%** | **100 / 111** |"
    )
    assert second == "| ahead | 12 | **10.00 / 10.40, +4.0%** | 20.00 / 30.00, +50.0% | 0 / 5 |"


def test_a_gpu_that_does_not_ship_is_refused():
    with pytest.raises(InputError, match="no GPU of that device ships"):
        engine_loads.common_words("opt-13b", {"fingerprint": {"device": "unknown"}})


def test_kept_loads_are_predicted_within_the_limits(tmp_path):
    kept = tmp_path / "loads"
    shutil.copytree(KEPT, kept)
    profile = kept / engine_loads.PROFILE
    profile.write_text(dump(read_profile("gpu-engine/h100-llama-3.1-8b-tp1")))
    common = engine_loads.common_words("llama-3.1-8b", read_profile(profile))
    rows = list(engine_loads.compared(engine_loads.LOADS, common, profile, kept))
    assert len(rows) == 6
    for load, real, simulated in rows:
        assert simulated.tpot_s == pytest.approx(real.tpot_s, rel=engine_loads.TPOT), load
        assert simulated.preemptions == pytest.approx(real.preemptions, rel=0.1, abs=5), load
        if load.rate == engine_loads.RATES[0]:
            assert simulated.ttft_p50_s == pytest.approx(real.ttft_p50_s, rel=engine_loads.TTFT)


def test_the_load_that_was_predicted_badly_is_so_by_one_preempted_request():
    """It has two tokens, and was preempted between them; the mean of all requests has it too."""
    folder = KEPT.with_name("loads-again")
    profile = folder / engine_loads.PROFILE
    common = engine_loads.common_words("llama-3.1-8b", read_profile(profile))
    load = Load("ahead", 12.0)
    costs = ["cost=profile", f"cost.path={profile}"]
    simulated = run(configured([*load.words(common), *costs])).requests.set_index("request_id")
    served = pd.read_csv(folder / load.folder / "requests.csv.gz").set_index("request_id")
    worst = served.tpot_s.idxmax()
    assert served.output_len[worst] == simulated.output_len[worst] == 2
    assert served.num_recomputes[worst] == 1
    assert simulated.num_recomputes[worst] == 0
    error = simulated.tpot_s.mean() / served.tpot_s.mean() - 1
    assert error == pytest.approx(-0.241, abs=0.001)
    others = simulated.tpot_s.drop(worst).mean() / served.tpot_s.drop(worst).mean() - 1
    assert others == pytest.approx(0.034, abs=0.001)
