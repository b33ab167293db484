"""Loads that the engine has served on an H100, beside their simulation."""

import json
from pathlib import Path

import pandas as pd
import pytest

from testbed.experiments.runs.compose import configured
from testbed.run.simulate import run

KEPT = Path(__file__).parents[3] / "kernels" / "results" / "engine"
COMMON = (
    "model=llama-3.1-8b",
    "server=h100-80gb",
    "server.num_blocks=1024",
    "~server.kv_memory_gib",
    "swap_space_gib=0",  # one sequence a request: it is computed again
    "trace=sharegpt",
    "arrivals.duration_s=20",
    "cost=profile",
)
PLANNED = {"ahead": ("+system=vllm-v1",), "in-turn": ()}


def simulated(planned, rate, profile):
    words = [*PLANNED[planned], *COMMON, f"arrivals.rate={rate}", f"cost.path={profile}"]
    return run(configured(words))


@pytest.mark.parametrize("planned", PLANNED)
@pytest.mark.parametrize("rate", [6, 12, 18])
def test_kept_loads_are_predicted_within_the_limits_that_were_fixed_before(planned, rate):
    """TPOT within 3%, preemptions 10% or 5, TTFT's median 10% in the smallest load."""
    ours = simulated(planned, rate, "gpu-engine/h100-llama-3.1-8b-tp1").summary
    real = json.loads((KEPT / "loads" / f"{planned}-{rate}" / "summary.json").read_text())
    assert ours["tpot_s"]["mean"] == pytest.approx(real["tpot_s"]["mean"], rel=0.03)
    preempted, expected = (sum(side["preemptions"].values()) for side in (ours, real))
    assert preempted == pytest.approx(expected, rel=0.1, abs=5)
    if rate == 6:
        assert ours["ttft_s"]["p50"] == pytest.approx(real["ttft_s"]["p50"], rel=0.1)


def test_the_load_that_was_predicted_badly_is_so_by_one_preempted_request():
    """It has two tokens, and was preempted between them; the mean of all requests has it too."""
    folder = KEPT / "loads-again"
    ours = simulated("ahead", 12, folder / "profile.json").requests.set_index("request_id")
    served = pd.read_csv(folder / "ahead-12" / "requests.csv.gz").set_index("request_id")
    worst = served.tpot_s.idxmax()
    assert served.output_len[worst] == ours.output_len[worst] == 2
    assert served.num_recomputes[worst] == 1
    assert ours.num_recomputes[worst] == 0
    error = ours.tpot_s.mean() / served.tpot_s.mean() - 1
    assert error == pytest.approx(-0.241, abs=0.001)
    others = ours.tpot_s.drop(worst).mean() / served.tpot_s.drop(worst).mean() - 1
    assert others == pytest.approx(0.034, abs=0.001)
