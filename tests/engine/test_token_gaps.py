"""The gaps between tokens, computed from spans, equal those of the times that a listener gets."""

import tracemalloc

import hypothesis.strategies as st
import numpy as np
import pytest
from drafting import speculating_schedulers
from hypothesis import HealthCheck, given, settings
from listening import listened
from manual_driver import paged, scheduler_of
from same_runs import assert_same_gaps
from strategies import (
    MAX_LEN,
    of_one_sequence,
    policies,
    ranked_schedulers,
    schedulers,
    with_ranks,
    workloads,
)
from tiny import analytic

from testbed.core.request import PS, Request
from testbed.cost.model import UNBOUNDED
from testbed.engine import gap_runs, packed_rows
from testbed.engine import recorder as recorders
from testbed.engine.gap_runs import GapParts, GapRuns
from testbed.engine.packed_rows import PackedRows
from testbed.engine.recorder import span_columns, span_columns_in_parts
from testbed.engine.simulation import simulate
from testbed.engine.token_gaps import STEPS, TokenClock
from testbed.memory.contiguous.reservations import ContiguousMax
from testbed.memory.paged.paged import Paged
from testbed.memory.prefix_cache.output_caching import OutputCaching
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.run.metrics import spread, spread_of_gaps
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import Recompute
from testbed.sched.static_batch import StaticBatch

ANALYTIC = analytic(overhead_s=1e-3, overhead_per_request_s=1e-4)


def assert_gaps(recorder, listener):
    gaps = recorder.token_gaps()
    expected = listener.gaps_ps
    every = sorted(gap for one in expected.values() for gap in one)
    assert np.sort(np.repeat(*gaps.runs.listed())).tolist() == every
    longest = dict(zip(gaps.request_ids.tolist(), gaps.longest_ps.tolist(), strict=True))
    assert longest == {one: max(times) for one, times in expected.items()}


many = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))


@many
@given(policies(), schedulers(), workloads(), st.sampled_from([UNBOUNDED, 3 * 10**9]))
def test_gaps_of_spans_equal_the_times_of_all_tokens(
    make_policy, make_scheduler, requests, stop_ps
):
    assert_gaps(*listened(requests, make_scheduler(make_policy()), ANALYTIC, stop_ps=stop_ps))


@many
@given(policies([PrefixCaching]), ranked_schedulers(), with_ranks(workloads()))
def test_gaps_of_requests_that_are_served_by_rank(make_policy, make_scheduler, requests):
    assert_gaps(*listened(of_one_sequence(requests), make_scheduler(make_policy()), ANALYTIC))


@many
@given(policies([ContiguousMax]), workloads())
def test_gaps_end_with_the_output_in_static_batches(make_policy, requests):
    lengths = {}
    limits = {"max_batch_size": 4, "max_padded_len": MAX_LEN}
    scheduler = StaticBatch(make_policy(), Recompute(), lengths=lengths, **limits)
    assert_gaps(*listened(requests, scheduler, ANALYTIC))


@many
@given(
    policies([Paged, OutputCaching]),
    speculating_schedulers(truncates=False),
    workloads(),
    st.sampled_from([UNBOUNDED, 3 * 10**9]),
)
def test_tokens_of_an_iteration_with_drafts_come_at_once(make_policy, build, requests, stop_ps):
    policy = make_policy()
    policy.max_len = MAX_LEN
    scheduler = build(policy)
    acceptance = scheduler.drafter.acceptance
    options = {"acceptance": acceptance, "stop_ps": stop_ps}
    assert_gaps(*listened(of_one_sequence(requests), scheduler, ANALYTIC, **options))


@pytest.mark.parametrize("most", [1, 10**12])
@pytest.mark.parametrize("few", [3, 1 << 16])
def test_spread_of_runs_is_that_of_all_their_gaps(few, most, monkeypatch):
    monkeypatch.setattr(gap_runs, "FEW", few)
    rng = np.random.default_rng(0)
    columns = [rng.integers(*bounds, 200) for bounds in ((1, most + 1), (0, 9), (1, 30), (1, 40))]
    halves = [[column[part] for column in columns] for part in (slice(90), slice(90, None))]
    runs = GapParts([GapRuns(*half) for half in halves])
    every = np.sort(np.repeat(*runs.listed()))
    assert len(every) == runs.total
    assert runs.ranked(range(0, runs.total, 97)) == every[::97].tolist()
    assert runs.sum_ps() == sum(every.tolist())
    assert spread_of_gaps(runs) == pytest.approx(spread(every / PS), rel=1e-12)


def test_gaps_are_the_same_by_spans_in_parts(monkeypatch):
    requests = [Request(i, i * PS // 50, 5 + i, 3 + 7 * i % 40) for i in range(40)]
    runs = []
    for rows, blocks in ((512, 32), (3, 2)):
        monkeypatch.setattr(packed_rows, "BATCH", rows)
        monkeypatch.setattr(recorders, "BATCH", rows)
        monkeypatch.setattr(packed_rows, "BLOCKS_AT_ONCE", blocks)
        scheduler = scheduler_of(MixedPrefill, paged(40), Recompute())
        runs.append(simulate(requests, scheduler, ANALYTIC, MAX_LEN))
    assert_same_gaps(*[recorder.token_gaps() for recorder in runs])
    parts = [*span_columns_in_parts(runs[1])]
    assert len(parts) > 10
    for name, column in span_columns(runs[0]).items():
        assert np.concatenate([part[name] for part in parts]).tolist() == column.tolist()


def test_gaps_take_little_memory():
    """Bytes a span at their peak, of the numbers that are not kept anyway."""
    num_spans, clock = 200_000, TokenClock()
    table = PackedRows(*STEPS)
    for start in range(0, num_spans, 512):
        at = np.arange(start, min(start + 512, num_spans), dtype=np.int64)
        table.extend([np.full(len(at), 9), at * 10**10, np.full(len(at), 10**9), 1 + at % 7, at])
    clock.has_token(0, 0)
    clock.stepped(sum(1 + i % 7 for i in range(num_spans)), 10**10)
    clock.left(0)
    tracemalloc.start()
    clock.gaps(lambda: table.in_parts(*STEPS))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= 130 * num_spans


def test_preempted_request_has_one_long_gap():
    """Six blocks of four tokens for two requests of 8 + 8: the later one is preempted."""
    requests = [
        Request(0, arrival_ps=0, prompt_len=8, output_len=8),
        Request(1, arrival_ps=0, prompt_len=8, output_len=8),
    ]
    scheduler = scheduler_of(MixedPrefill, paged(6), Recompute())
    recorder, listener = listened(requests, scheduler, ANALYTIC)
    assert recorder.totals.recomputes == 1
    assert_gaps(recorder, listener)
    longest = recorder.token_gaps().longest_of(np.array([0, 1, 2]))
    assert longest[1] > 3 * longest[0]  # it waits until the other one has ended
    assert longest[2] == -1


def test_a_request_that_is_back_has_its_gap_with_the_next_step_of_the_batch():
    """Tokens at 10, 30 (then paused until 50) and 60 ps: gaps of 20 and 30 ps."""
    clock = TokenClock()
    clock.is_back(0)  # was never here: nothing
    clock.has_token(0, 10)
    clock.stepped(1, 30)
    clock.paused(0)
    clock.is_back(0)
    clock.stepped(1, 60)
    clock.left(0)
    clock.verified(0, 3, 70)  # has left meanwhile: nothing
    spans = {
        "decode_seqs": np.ones(2, int),
        "start_ps": np.array([10, 50]),
        "duration_ps": np.array([20, 10]),
        "iterations": np.ones(2, int),
        "growth_ps": np.zeros(2, int),
    }
    assert set(spans) == set(STEPS)
    gaps = clock.gaps(lambda: [spans])
    assert sorted(np.repeat(*gaps.runs.listed()).tolist()) == [20, 30]
    assert gaps.longest_ps.tolist() == [30]
