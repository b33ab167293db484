"""Pairs of runs of the engine and their simulation: rehearsed on a CPU, and the kept ones simulated
again.
"""

import tarfile
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("simpy", reason="SimPy is not installed")

import tiny_models  # noqa: E402, F401  (one thread)

from testbed.core.specs import ModelSpec  # noqa: E402
from testbed.engine.wall_clock import StepClock  # noqa: E402
from testbed.experiments.studies import pairs as validation  # noqa: E402
from testbed.kernels.engine import served_run  # noqa: E402
from testbed.kernels.engine.pairs import gpu_side, paired_runs  # noqa: E402
from testbed.kernels.engine.ragged import Ahead  # noqa: E402
from testbed.kernels.engine.served_run import make_engine, on_the_device_of  # noqa: E402
from testbed.run.build import build  # noqa: E402
from testbed.run.config import RunConfig  # noqa: E402

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "kernels" / "results" / "engine"
PAGE = ROOT / "kernels" / "results" / "h200-engine.md"
PROFILE = Path("gpu-engine/h200-llama-3-8b-tp1")
TINY = ModelSpec("tiny-llama", 1, 16, 2, 1, 8, 16, 3, 61, 8192)
ENGINE = {"device": "cpu", "dtype": "float32", "graphs": 0}
COST = paired_runs.part(
    "cost.analytic.AnalyticCost", efficiencies=paired_runs.part("cost.analytic.Efficiencies")
)
STAGE = paired_runs.Stage(TINY, 0.2, ENGINE, lambda name: deepcopy(COST), warm=(5, 9))


def test_engine_runs_are_simulated_and_compared(tmp_path):
    some = [
        pair
        for pair in paired_runs.PAIRS
        if pair.name in ("sharegpt-1.5-0", "sharegpt-1.5-1", "chats-cache-0.95-0")
    ]
    broken = replace(some[0], series=replace(some[0].series, name="broken", preemption="None"))
    assert gpu_side.run_pairs([*some, broken], STAGE, tmp_path, 60.0) == (["broken-1.5-0"], [])
    assert gpu_side.run_pairs(some, STAGE, tmp_path / "late", 0.0) == (
        [],
        [pair.name for pair in some],
    )
    with tarfile.open(tmp_path / gpu_side.ARCHIVE) as archive:
        assert {f"{pair.name}/iterations.csv" for pair in some} <= set(archive.getnames())
    text = validation.section(
        validation.simulated(tmp_path, PROFILE, STAGE, tmp_path / "simulated")
    )
    assert text.count("chats, prefix cache, recompute | 0.95") == 1
    assert text.count("ShareGPT, recompute | 1.5 |") == 1  # both seeds in a line
    assert (tmp_path / "simulated" / "sharegpt-1.5-1" / "summary.json").is_file()


@pytest.mark.parametrize(
    ("series", "num_seqs"),
    [(paired_runs.SERIES[2], 1), (paired_runs.SERIES[3], 1), (paired_runs.SERIES[0], 2)],
)
def test_loaded_machine_serves_as_a_fresh_engine_without_preparing_ahead(
    monkeypatch, series, num_seqs
):
    monkeypatch.setattr(served_run, "WallClock", lambda: StepClock(0.1))
    largest = gpu_side.largest_setup(STAGE)
    assert largest.config.window_s is None
    assert largest.config.engine.warm == STAGE.warm
    loaded = make_engine(largest)
    trace = paired_runs.CHATS | {"max_prompt": 120, "max_output": 30}
    small = replace(series, trace=trace, pool=400, rate=4.0, num_seqs=num_seqs)
    values = paired_runs.Pair(small, 1.0, 1).config(replace(STAGE, seconds=5.0))

    def served(make):
        setup = build(RunConfig.from_values(values))
        engine = make(setup)
        records = engine.serve(list(setup.workload))
        totals = records.recorder.totals
        assert totals.swaps + totals.recomputes > 0
        return records.outputs, [iteration.work for iteration in records.iterations]

    prepared_batch, batches_ahead = Ahead.batch, []

    def noted_batch(self, *arguments):
        batches_ahead.append(prepared_batch(self, *arguments))
        return batches_ahead[-1]

    monkeypatch.setattr(Ahead, "batch", noted_batch)
    ahead = served(lambda setup: on_the_device_of(loaded, setup))
    has_prepared = any(batch is not None for batch in batches_ahead)
    assert has_prepared == (num_seqs == 1)
    monkeypatch.setattr(Ahead, "batch", lambda *_: None)
    plain = served(lambda setup: make_engine(setup, loaded.runner.network.weights))
    assert ahead == plain


def test_kept_pairs_miss_the_goals_that_the_page_says(monkeypatch):
    monkeypatch.chdir(ROOT)  # configs name the Azure trace from there
    names = ("sharegpt-0.8-0", "azure-swap-1.1-0", "chats-cache-swap-0.95-0")
    monkeypatch.setattr(
        validation, "PAIRS", [pair for pair in paired_runs.PAIRS if pair.name in names]
    )
    errors = validation.simulated(RESULTS / "pairs", PROFILE, paired_runs.device()).errors
    page = PAGE.read_text(encoding="utf-8").splitlines()
    for goal, limit in validation.GOALS.items():
        title = validation.NAMES[validation.JUDGED.index(goal)].split(",")[0]
        (verdict,) = [line for line in page if line.startswith(f"- {title} within {limit:g}")]
        for (name, *_), error in errors[goal].dropna().items():
            is_missed = abs(error) > limit
            assert (f"{name} {error:+.1f}" in verdict) == is_missed


@pytest.mark.slow
def test_page_has_the_verdicts_on_the_kept_pairs(monkeypatch):
    monkeypatch.chdir(ROOT)
    text = validation.section(
        validation.simulated(RESULTS / "pairs", PROFILE, paired_runs.device())
    )
    verdicts = [line for line in text.splitlines() if line.startswith(("- ", "Inside "))]
    assert len(verdicts) == 4
    assert set(verdicts) <= set(PAGE.read_text(encoding="utf-8").splitlines())
