"""Fast must equal slow, bit for bit: fast-forwarded spans against one event per iteration and walked tables."""

from dataclasses import fields

import hypothesis.strategies as st
import numpy as np
from hypothesis import HealthCheck, given, settings
from strategies import CONTIGUOUS, MAX_LEN, policies, schedulers, told, vllm_schedulers, workloads

from testbed.core.request import PS, Request
from testbed.core.specs import GpuSpec, ModelSpec, ServerSpec
from testbed.cost.analytic import AnalyticCost, Efficiencies
from testbed.cost.profile import ProfileCost, read_profile
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec, host
from testbed.memory.prefix_cache.output_caching import OutputCaching
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.sched.preemption import Recompute, Swap
from testbed.sched.separate import SeparatePrefill
from testbed.sched.static_batch import StaticBatch
from testbed.sim.recorder import SLOTS
from testbed.sim.simulation import simulate

MODEL = ModelSpec("tiny", 2, 64, 4, 4, 16, 256, 2, 100, MAX_LEN)
GPU = GpuSpec("gpu", 10**9, 1e9, 1e12, 1e8, 1e9)
SERVER = ServerSpec("server", GPU, 1)
ANALYTIC = AnalyticCost(MODEL, SERVER, Efficiencies(overhead_s=1e-3, overhead_per_request_s=1e-4, copy_s=1e-5))
PROFILE = read_profile("h200-opt-13b-tp1")
MEASURED = ProfileCost(ModelSpec(**PROFILE["model"]), None, PROFILE)
PREFIX = 21
NEVER = 1 << 62


def run(requests, scheduler, fast_forward, *, cost=ANALYTIC, marks_ps=(), stop_ps=NEVER):
    return simulate(requests, scheduler, cost, MAX_LEN, marks_ps=marks_ps, stop_ps=stop_ps, fast_forward=fast_forward)


def assert_same(fast, slow):
    for field in fields(fast.totals):
        assert getattr(fast.totals, field.name) == getattr(slow.totals, field.name), field.name
    assert fast.end_ps == slow.end_ps
    assert fast.marks == slow.marks
    assert fast.rejections == slow.rejections
    for name, column in fast.requests.columns().items():
        assert column.tolist() == slow.requests.columns()[name].tolist(), name
    assert_same_spans(fast.spans.columns(), slow.spans.columns())


def assert_same_spans(spans, steps):
    """Every span is the steps that it stands for: their times and sums, and what all of them have in common.

    Who waits is counted when a span begins, and is preempted then.
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
        assert spans["duration_ps"].tolist() == np.add.reduceat(steps["duration_ps"], first).tolist()
        for name in SLOTS:
            sums = np.rint(spans[name] * iterations)
            assert sums.tolist() == np.add.reduceat(steps[name], first).tolist(), name


def check_run(requests, make_scheduler, **options):
    """Both runs agree; the policies of both."""
    fast, slow = make_scheduler(), make_scheduler()
    recorder = run(requests, fast, True, **options)
    assert_same(recorder, run(requests, slow, False, **options))
    if "stop_ps" not in options:
        totals = recorder.totals
        assert totals.arrived == len(requests) == totals.finished + totals.rejected
        assert fast.policy.usage() == slow.policy.usage()
        assert fast.policy.counters() == slow.policy.counters()
    for scheduler in (fast, slow):
        scheduler.policy.check()
    return fast.policy, slow.policy


many = settings(max_examples=250, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@many
@given(policies(), schedulers(), workloads())
def test_iteration_level(make_policy, make_scheduler, requests):
    check_run(requests, lambda: make_scheduler(make_policy()))


@settings(many, max_examples=100)
@given(policies(), schedulers(), workloads())
def test_measured_prices(make_policy, make_scheduler, requests):
    check_run(requests, lambda: make_scheduler(make_policy()), cost=MEASURED)


@settings(many, max_examples=100)
@given(policies(), vllm_schedulers(), workloads())
def test_vllm_v1(make_policy, make_scheduler, requests):
    check_run(requests, lambda: make_scheduler(make_policy()))


@settings(many, max_examples=150)
@given(policies([OutputCaching]), vllm_schedulers(), st.one_of(workloads(), told(workloads())))
def test_vllm_v1_with_its_cache(make_policy, make_scheduler, requests):
    check_run(requests, lambda: make_scheduler(make_policy()))


@settings(many, max_examples=50)
@given(policies([OutputCaching]), vllm_schedulers(), workloads(), st.lists(st.integers(1, 10**12), max_size=3))
def test_vllm_v1_with_marks(make_policy, make_scheduler, requests, marks):
    check_run(requests, lambda: make_scheduler(make_policy()), marks_ps=marks)


@settings(many, max_examples=100)
@given(policies([PrefixCaching, OutputCaching]), schedulers(), told(workloads()))
def test_prefix_caching(make_policy, make_scheduler, requests):
    fast, slow = check_run(requests, lambda: make_scheduler(make_policy()))
    assert fast.counters()["prompts"] <= len(requests)
    assert (slow.usage().live, slow.usage().held) == (0, 0)


@settings(many, max_examples=100)
@given(policies([Paged, PrefixCaching], prefix=PREFIX), schedulers(), told(workloads(PREFIX)))
def test_registered_prefixes(make_policy, make_scheduler, requests):
    check_run(requests, lambda: make_scheduler(make_policy()))


@settings(many, max_examples=150)
@given(policies(), schedulers(), workloads(), st.lists(st.integers(1, 10**12), max_size=3), st.integers(1, 10**12))
def test_marks_and_an_early_stop(make_policy, make_scheduler, requests, marks, stop):
    check_run(requests, lambda: make_scheduler(make_policy()), marks_ps=marks, stop_ps=stop)


@settings(many, max_examples=100)
@given(policies(CONTIGUOUS), workloads(), st.integers(1, 9), st.sampled_from([ANALYTIC, MEASURED]))
def test_static_batches(make_policy, requests, max_batch_size, cost):
    def make():
        return StaticBatch(make_policy(), Recompute(), max_batch_size=max_batch_size, max_padded_len=MAX_LEN)

    check_run(requests, make, cost=cost)


def test_everything_is_given_back_at_the_end():
    policy = Paged(PoolSpec(600, MAX_LEN, host(300)))
    requests = [Request(i, i * PS // 1000, 50, 70) for i in range(40)]
    scheduler = SeparatePrefill(policy, Swap(), max_num_batched_tokens=256, max_num_seqs=40)
    run(requests, scheduler, True)
    used = policy.usage()
    assert (used.live, used.held, used.free) == (0, 0, used.total)
