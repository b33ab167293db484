"""An engine that prepares batches ahead serves as one that does not; the kept pairs, simulated
again.
"""

from dataclasses import asdict, replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("simpy", reason="SimPy is not installed")

import tiny_models  # noqa: E402, F401  (one thread)

from testbed.core.specs import ModelSpec  # noqa: E402
from testbed.engine.wall_clock import StepClock  # noqa: E402
from testbed.experiments.studies import paired_runs  # noqa: E402
from testbed.experiments.studies import pairs as validation  # noqa: E402
from testbed.kernels.engine import served_run  # noqa: E402
from testbed.kernels.engine.ragged import Ahead  # noqa: E402
from testbed.kernels.engine.served_run import make_engine  # noqa: E402
from testbed.run.build import build  # noqa: E402
from testbed.run.config import RunConfig  # noqa: E402

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "kernels" / "results" / "h200-engine.md"
TINY = ModelSpec("tiny-llama", 1, 16, 2, 1, 8, 16, 3, 61, 8192)
ON_CPU = {  # in place of what a pair simulates
    "model": paired_runs.part("core.specs.ModelSpec", **asdict(TINY)),
    "cost": paired_runs.part(
        "cost.analytic.AnalyticCost", efficiencies=paired_runs.part("cost.analytic.Efficiencies")
    ),
    "engine": {"device": "cpu", "dtype": "float32", "graphs": 0},
}


@pytest.mark.parametrize(
    ("series", "num_seqs"),
    [(paired_runs.SERIES[2], 1), (paired_runs.SERIES[3], 1), (paired_runs.SERIES[0], 2)],
)
def test_an_engine_serves_as_one_without_preparing_ahead(monkeypatch, series, num_seqs):
    monkeypatch.setattr(served_run, "WallClock", lambda: StepClock(0.1))
    monkeypatch.setattr(paired_runs, "SECONDS", 5.0)
    monkeypatch.setattr(paired_runs, "read_model", lambda name: TINY)
    trace = paired_runs.CHATS | {"max_prompt": 120, "max_output": 30}
    small = replace(series, trace=trace, pool=400, rate=4.0, num_seqs=num_seqs)
    values = paired_runs.Pair(small, 1.0, 1).config() | ON_CPU

    def served():
        setup = build(RunConfig.from_values(values))
        records = make_engine(setup).serve(list(setup.workload))
        totals = records.recorder.totals
        assert totals.swaps + totals.recomputes > 0
        return records.outputs, [iteration.work for iteration in records.iterations]

    prepared_batch, batches_ahead = Ahead.batch, []

    def noted_batch(self, *arguments):
        batches_ahead.append(prepared_batch(self, *arguments))
        return batches_ahead[-1]

    monkeypatch.setattr(Ahead, "batch", noted_batch)
    ahead = served()
    has_prepared = any(batch is not None for batch in batches_ahead)
    assert has_prepared == (num_seqs == 1)
    monkeypatch.setattr(Ahead, "batch", lambda *_: None)
    assert ahead == served()


def test_kept_pairs_miss_the_goals_that_the_page_says(monkeypatch):
    monkeypatch.chdir(ROOT)  # configs name the Azure trace from there
    names = ("sharegpt-0.8-0", "azure-swap-1.1-0", "chats-cache-swap-0.95-0")
    monkeypatch.setattr(
        validation, "PAIRS", [pair for pair in paired_runs.PAIRS if pair.name in names]
    )
    errors = validation.simulated().errors
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
    text = validation.section(validation.simulated())
    verdicts = [line for line in text.splitlines() if line.startswith(("- ", "Inside "))]
    assert len(verdicts) == 4
    assert set(verdicts) <= set(PAGE.read_text(encoding="utf-8").splitlines())
