"""An engine that prepares batches ahead serves as one that does not."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("simpy", reason="SimPy is not installed")

import tiny_models  # noqa: E402, F401  (one thread)

from testbed.core.specs import ModelSpec  # noqa: E402
from testbed.engine.wall_clock import StepClock  # noqa: E402
from testbed.experiments.runs.compose import configured  # noqa: E402
from testbed.kernels.engine import served_run  # noqa: E402
from testbed.kernels.engine.ragged import Ahead  # noqa: E402
from testbed.kernels.engine.served_run import make_engine  # noqa: E402
from testbed.run.build import build  # noqa: E402

TINY = ModelSpec("tiny-llama", 1, 16, 2, 1, 8, 16, 3, 61, 8192)
WORDS = (
    "engine=gpu",
    "engine.device=cpu",
    "engine.dtype=float32",
    "engine.graphs=0",
    "server.num_blocks=25",
    "swap_space_gib=0.01",
    "scheduler=mixed",
    "scheduler.max_num_batched_tokens=2560",
    "scheduler.max_num_seqs=128",
    "trace=chat_histories",
    "trace.max_prompt=120",
    "trace.max_output=30",
    "arrivals.rate=4",
    "arrivals.duration_s=5",
    "workload.max_len=4096",
    "seed=1",
)


@pytest.mark.parametrize(
    ("policy", "preemption", "num_seqs"),
    [
        ("prefix_caching", "recompute", 1),
        ("prefix_caching", "swap", 1),
        ("paged", "recompute", 2),
    ],
)
def test_an_engine_serves_as_one_without_preparing_ahead(monkeypatch, policy, preemption, num_seqs):
    monkeypatch.setattr(served_run, "WallClock", lambda: StepClock(0.1))
    chosen = (f"policy={policy}", f"preemption={preemption}", f"workload.num_seqs={num_seqs}")
    config = replace(configured([*WORDS, *chosen]), model=TINY)

    def served():
        setup = build(config)
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
