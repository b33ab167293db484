"""The fused path, arrivals that the engine takes itself, and beams that are asked where candidates
change give what the plain path gives with an event for each arrival and a question at each step:
the same rows of requests and spans, the same totals.
"""

from dataclasses import replace
from itertools import chain
from unittest.mock import patch

import hypothesis.strategies as st
import numpy as np
from depth import examples
from hypothesis import HealthCheck, given, settings
from same_runs import assert_same_gaps, assert_same_rows, lengths_of
from strategies import (
    MAX_LEN,
    mixed_workloads,
    policies,
    ranked_schedulers,
    schedulers,
    vllm_schedulers,
    with_shared_prompts,
    workloads,
)
from tiny import MODEL, analytic

from testbed.core.layers import Window
from testbed.core.slots import growth_of
from testbed.engine.engine import Engine
from testbed.engine.simulation import Environment, simulate
from testbed.engine.totals import changes_of
from testbed.memory.paged.paged import Paged
from testbed.memory.paged.paged_2023 import Paged2023
from testbed.memory.policy import PoolSpec
from testbed.memory.prefix_cache.output_caching import OutputCaching
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.sched.beam_search import BeamModel, SyntheticBeams
from testbed.sched.preemption import Recompute
from testbed.sched.static_batch import StaticBatch

ANALYTIC = analytic(overhead_s=1e-3, overhead_per_request_s=1e-4, copy_s=1e-5)
WINDOWED = analytic(model=replace(MODEL, window=Window(20, 1)), overhead_s=1e-3, copy_s=1e-5)
LAUNCHED = analytic(overhead_s=1e-3, launch_s=2e-3)  # prompts take the plain path
many = settings(max_examples=examples(120), deadline=None, suppress_health_check=list(HealthCheck))


@many
@given(
    st.one_of(policies(), policies([Paged2023, PrefixCaching, OutputCaching])),
    st.one_of(schedulers(), vllm_schedulers(), ranked_schedulers()),
    st.one_of(workloads(), mixed_workloads(), with_shared_prompts(workloads())),
    st.sampled_from([ANALYTIC, ANALYTIC, WINDOWED, LAUNCHED]),
    st.lists(st.integers(0, 10**13), max_size=3),
    st.one_of(st.none(), st.integers(10**10, 10**13)),
)
def test_the_fused_path_equals_the_plain_path(
    make_policy, make_scheduler, requests, cost, snapshots_ps, stop_ps
):
    options = {"snapshots_ps": snapshots_ps}
    if stop_ps is not None:
        options["stop_ps"] = stop_ps
    check_paths(requests, lambda: make_scheduler(make_policy()), cost, **options)


@many
@given(
    st.sampled_from([Paged, PrefixCaching, OutputCaching]),
    st.sampled_from([4, 16]),
    st.integers(1, 9),
    st.one_of(*map(with_shared_prompts, (workloads(), mixed_workloads()))),
    st.sampled_from([ANALYTIC, LAUNCHED]),
)
def test_the_fused_path_equals_the_plain_path_with_static_batches(
    policy, block_size, max_batch_size, requests, cost
):
    num_seqs = max_batch_size * max(r.num_seqs for r in requests)
    pool = PoolSpec(num_seqs * MAX_LEN, MAX_LEN)

    def make():
        return StaticBatch(
            policy(pool, block_size=block_size),
            Recompute(),
            max_batch_size=max_batch_size,
            max_padded_len=MAX_LEN,
            lengths={},
        )

    check_paths(requests, make, cost)


def check_paths(requests, make_scheduler, cost, **options):
    def serve(env):
        scheduler = make_scheduler()
        lengths = lengths_of(scheduler)
        return simulate(requests, scheduler, cost, MAX_LEN, lengths=lengths, env=env, **options)

    fused = serve(None)
    with (
        patch.object(Engine, "_make_fused_path", lambda *_: None),
        patch.object(SyntheticBeams, "changes", BeamModel.changes),
    ):
        plain = serve(Environment(0))
    assert fused.totals == plain.totals
    assert (fused.end_ps, fused.snapshots) == (plain.end_ps, plain.snapshots)
    assert fused.rejections == plain.rejections
    assert_same_rows(fused.requests, plain.requests)
    assert_same_rows(fused.spans, plain.spans)
    assert_same_gaps(fused.token_gaps(), plain.token_gaps())


EVENTS = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 40)), max_size=4)


@given(
    st.integers(1, 9),
    st.integers(1, 10**18),
    st.integers(0, 10**9),
    st.integers(0, 9),
    *[EVENTS] * 3,
)
def test_changes_of_a_span_are_the_sums_over_its_iterations(
    steps, first_ps, growth_ps, live, started, held, evicted
):
    kept = [[(t, slots) for t, slots in each if t < steps] for each in (started, held, evicted)]
    times = [first_ps + growth_ps * t for t in range(steps)]
    rows = []
    for i in range(steps):
        internal, taken, dropped = (sum(slots for t, slots in events if t <= i) for events in kept)
        stored = live * (i + 1)
        rows.append((stored, taken - stored - internal, internal, -dropped))
    grown = [live, *chain.from_iterable(map(growth_of, kept))]
    columns = map(np.array, ([steps], [sum(times)], [growth_ps], [[number] for number in grown]))
    counts, over_time = changes_of(*columns)
    assert counts.T.tolist() == [[*map(sum, zip(*rows, strict=True))]]
    assert over_time == [
        sum(count * ps for count, ps in zip(column, times, strict=True))
        for column in zip(*rows, strict=True)
    ]
