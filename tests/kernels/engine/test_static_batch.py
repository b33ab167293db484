"""Batches that start and end together: padding passes through the model, and changes no answer."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import tiny_models as tiny  # noqa: E402

from testbed.memory.contiguous.contiguous import ContiguousMax, ContiguousOracle  # noqa: E402
from testbed.sched.preemption import Recompute  # noqa: E402
from testbed.sched.static_batch import StaticBatch  # noqa: E402

LENGTHS = [(30, 9), (7, 20), (50, 5), (3, 30), (40, 12), (12, 25)]


@pytest.mark.parametrize("policy", [ContiguousMax, ContiguousOracle])
def test_every_planned_token_runs_and_outputs_are_unchanged(policy):
    computed = []

    def static(policy):
        return StaticBatch(policy, Recompute(), max_batch_size=4, max_padded_len=100)

    engine = tiny.engine(policy=policy, scheduler=static, spec=tiny.pool(1024))
    forward = engine.runner.forward

    def watched(batch):
        computed.append(len(batch.tokens))
        return forward(batch)

    engine.runner.forward = watched
    records = engine.serve(tiny.requests(LENGTHS))
    assert computed == [one.work.num_tokens for one in records.iterations]
    assert sum(computed) > sum(prompt + output - 1 for prompt, output in LENGTHS)
    alone = [tiny.engine().serve([r]).outputs[r.request_id] for r in tiny.requests(LENGTHS)]
    assert [records.outputs[i] for i in range(len(LENGTHS))] == alone
