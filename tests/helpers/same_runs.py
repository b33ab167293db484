"""Two runs are the same, bit for bit, one of them in spans and the other step by step."""

from dataclasses import fields

import numpy as np
import pytest

from testbed.engine.recorder import SLOTS
from testbed.engine.simulation import simulate

FEW_AND_MANY = [
    2,
    pytest.param(3334, marks=pytest.mark.slow),
]  # histories of a policy in each of the three pools


def assert_same(fast, slow):
    for field in fields(fast.totals):
        assert getattr(fast.totals, field.name) == getattr(slow.totals, field.name), field.name
    assert fast.end_ps == slow.end_ps
    assert fast.snapshots == slow.snapshots
    assert fast.rejections == slow.rejections
    assert_same_rows(fast.requests, slow.requests)
    assert_same_spans(fast.spans.columns(), slow.spans.columns())
    assert_same_gaps(fast.token_gaps(), slow.token_gaps())


def assert_same_gaps(one, other):
    """The gaps between tokens of two runs are the same, all together and the longest of each
    request.
    """
    gaps = [np.sort(np.repeat(*some.runs.listed())).tolist() for some in (one, other)]
    assert gaps[0] == gaps[1]
    assert one.request_ids.tolist() == other.request_ids.tolist()
    assert one.longest_ps.tolist() == other.longest_ps.tolist()


def check_both_ways(requests, make_scheduler, cost, max_len, whole=True, **options):
    """A run in spans and one step by step are the same, and whole ones serve or turn away all;
    their schedulers.
    """
    schedulers = make_scheduler(), make_scheduler()
    fast, slow = (
        simulate(
            requests,
            scheduler,
            cost,
            max_len,
            fast_forward=way,
            lengths=lengths_of(scheduler),
            **options,
        )
        for scheduler, way in zip(schedulers, (True, False), strict=True)
    )
    assert_same(fast, slow)
    policies = [scheduler.policy for scheduler in schedulers]
    if whole:
        assert fast.totals.arrived == len(requests) == fast.totals.finished + fast.totals.rejected
        assert policies[0].usage() == policies[1].usage()
        assert policies[0].counters() == policies[1].counters()
    for policy in policies:
        policy.check()
    return schedulers


def lengths_of(scheduler):
    """The mapping with which an oracle of the run was built, None if there is none."""
    for part in (scheduler, scheduler.policy, scheduler.preemption):
        if getattr(part, "lengths", None) is not None:
            return part.lengths
    return None


def assert_same_rows(one, other):
    """Two tables of recorders have the same columns."""
    columns, others = one.columns(), other.columns()
    assert columns.keys() == others.keys()
    for name, column in columns.items():
        assert column.tolist() == others[name].tolist(), name


def assert_same_spans(spans, steps):
    """Every span is the steps that it stands for: their times and sums, and what all of them have
    in common.

    Waiting requests are counted when a span begins, and are preempted then.
    """
    iterations = spans["iterations"]
    assert (steps["iterations"] == 1).all()
    assert iterations.sum() == len(steps["iterations"])
    first = np.cumsum(iterations) - iterations
    for name in ("start_ps", "preempted", "waiting", "swapped"):
        assert spans[name].tolist() == steps[name][first].tolist(), name
    for name in ("decode_seqs", "prefill_tokens", "running"):
        assert np.repeat(spans[name], iterations).tolist() == steps[name].tolist(), name
    if len(first):
        assert (
            spans["duration_ps"].tolist() == np.add.reduceat(steps["duration_ps"], first).tolist()
        )
        for name in SLOTS:
            sums = np.rint(spans[name] * iterations)
            assert sums.tolist() == np.add.reduceat(steps[name], first).tolist(), name
