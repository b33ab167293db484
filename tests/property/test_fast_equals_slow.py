"""Fast must equal slow, bit for bit: fast-forwarded spans against one event per iteration and walked tables."""

from dataclasses import fields

import hypothesis.strategies as st
import numpy as np
from hypothesis import HealthCheck, given, settings
from testbed.sched.prefill import ChunkedPrefill, MixedPrefill, SeparatePrefill

from testbed.core.request import PS, Request
from testbed.core.specs import GpuSpec, ModelSpec, ServerSpec
from testbed.cost.analytic import AnalyticCost, Efficiencies
from testbed.memory.contiguous.contiguous import ContiguousMax, ContiguousOracle, ContiguousPow2
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec
from testbed.memory.prefix_cache.eviction.arc import Arc
from testbed.memory.prefix_cache.eviction.cost_aware import CostAware
from testbed.memory.prefix_cache.eviction.fifo import Fifo
from testbed.memory.prefix_cache.eviction.lru import Lru
from testbed.memory.prefix_cache.eviction.s3_fifo import S3Fifo
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.sched.preemption import Recompute, RecomputeSingleSwapGroup, Swap
from testbed.sched.static_batch import StaticBatch
from testbed.sim.simulation import simulate

MAX_LEN = 128
MODEL = ModelSpec("tiny", 2, 64, 4, 4, 16, 256, 2, 100, MAX_LEN)
GPU = GpuSpec("gpu", 10**9, 1e9, 1e12, 1e8, 1e9)
SERVER = ServerSpec("server", GPU, 1)
COST = AnalyticCost(MODEL, SERVER, Efficiencies(overhead_s=1e-3, overhead_per_request_s=1e-4, copy_s=1e-5))


def checked(policy_class):
    """The policy, with its invariants checked and slots conserved after every call."""

    class Checked(policy_class):
        calls = 0

        def _checked(self, answer):
            self.calls += 1
            assert self.calls < 50_000, "the scheduler goes round in circles"
            self.check()
            used = self.usage()
            assert used.allocated + used.cached + used.free == used.total
            assert 0 <= used.live <= used.held <= used.allocated
            return answer

        def admit(self, seq, num_tokens):
            return self._checked(super().admit(seq, num_tokens))

        def admit_all(self, seqs, num_tokens):
            return self._checked(super().admit_all(seqs, num_tokens))

        def extend(self, seqs, num_tokens):
            return self._checked(super().extend(seqs, num_tokens))

        def release(self, seq):
            return self._checked(super().release(seq))

        def move(self, seqs, tier):
            return self._checked(super().move(seqs, tier))

    return Checked


@st.composite
def policies(draw, classes=(Paged, Paged, Paged, Paged, Paged, ContiguousMax, ContiguousPow2, ContiguousOracle)):
    policy = draw(st.sampled_from(classes))
    pool = PoolSpec(draw(st.sampled_from([1, 2, 3, 5])) * MAX_LEN, MAX_LEN, draw(st.sampled_from([1000, 0, 200])))
    block_size = draw(st.sampled_from([1, 3, 8, 16]))
    extra = {"watermark": draw(st.sampled_from([0.0, 0.01, 0.2]))} if policy is Paged else {}
    return lambda: checked(policy)(pool, block_size=block_size, **extra)


@st.composite
def caching_policies(draw):
    pool = PoolSpec(draw(st.sampled_from([1, 2, 3, 5])) * MAX_LEN, MAX_LEN, draw(st.sampled_from([1000, 0, 200])))
    options = {
        "block_size": draw(st.sampled_from([8, 1, 4, 16])),
        "watermark": draw(st.sampled_from([0.0, 0.01, 0.2])),
    }
    eviction = draw(st.sampled_from([Lru, Fifo, S3Fifo, Arc, CostAware]))
    caching = draw(st.sampled_from([PrefixCaching, PrefixCaching, checked(PrefixCaching)]))  # checking is slow
    return lambda: caching(pool, eviction=eviction(), **options)


@st.composite
def told(draw, requests):
    """The same requests, whose prompts begin as one of a few stories and end on their own."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    num_stories = draw(st.sampled_from([1, 2, 5]))
    changed = []
    for r in draw(requests):
        shared, story = int(rng.integers(0, 2 * r.prompt_len)), int(rng.integers(num_stories))
        ids = (story * MAX_LEN + i if i < shared else -1 - r.request_id for i in range(r.prompt_len))
        changed.append(r._replace(prompt_ids=tuple(ids)))
    return changed


@st.composite
def schedulers(draw):
    prefill = draw(st.sampled_from([SeparatePrefill, MixedPrefill, ChunkedPrefill]))
    preemption = draw(st.sampled_from([Recompute, Swap, RecomputeSingleSwapGroup]))
    limits = {
        "max_num_batched_tokens": draw(st.sampled_from([4, 40, 300])),
        "max_num_seqs": draw(st.sampled_from([2, 40, 40])),
    }
    return lambda policy: prefill(policy, preemption(), **limits)


@st.composite
def workloads(draw):
    size = draw(st.sampled_from([40, 20, 8, 2]))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    gap_ps = draw(st.sampled_from([10**8, 0, 10**9, 3 * 10**9, 10**11]))
    arrivals = np.cumsum(rng.integers(0, gap_ps + 1, size)).tolist()
    lengths = rng.integers(1, draw(st.sampled_from([40, MAX_LEN // 2, 6, MAX_LEN // 2 + 1])) + 1, (size, 2)).tolist()
    num_seqs = rng.choice([1, 1, 2, 4], size).tolist() if draw(st.booleans()) else [1] * size
    beam = draw(st.booleans())
    return [
        Request(i, arrivals[i], *lengths[i], num_seqs=n, beam=beam and n > 1 and i % 3 > 0)
        for i, n in enumerate(num_seqs)
    ]


def run(requests, scheduler, marks_ps, stop_ps, fast_forward):
    return simulate(requests, scheduler, COST, MAX_LEN, marks_ps=marks_ps, stop_ps=stop_ps, fast_forward=fast_forward)


def assert_same(fast, slow):
    for field in fields(fast.totals):
        assert getattr(fast.totals, field.name) == getattr(slow.totals, field.name), field.name
    assert fast.end_ps == slow.end_ps
    assert fast.marks == slow.marks
    assert fast.rejections == slow.rejections
    for name, column in fast.requests.columns().items():
        assert column.tolist() == slow.requests.columns()[name].tolist(), name
    assert len(fast.spans) <= len(slow.spans)


def check_run(requests, make_scheduler, marks_ps=(), stop_ps=1 << 62):
    fast = run(requests, make_scheduler(), marks_ps, stop_ps, True)
    slow = run(requests, make_scheduler(), marks_ps, stop_ps, False)
    assert_same(fast, slow)
    totals = fast.totals
    if stop_ps == 1 << 62:
        assert totals.arrived == len(requests) == totals.finished + totals.rejected
    return fast


many = settings(max_examples=700, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@many
@given(policies(), schedulers(), workloads())
def test_iteration_level(make_policy, make_scheduler, requests):
    check_run(requests, lambda: make_scheduler(make_policy()))


@settings(many, max_examples=200)
@given(caching_policies(), schedulers(), told(workloads()))
def test_prefix_caching(make_policy, make_scheduler, requests):
    policies = []
    check_run(requests, lambda: make_scheduler(policies.append(make_policy()) or policies[-1]))
    fast, slow = policies
    assert (fast.counts, fast.evictions, fast.usage()) == (slow.counts, slow.evictions, slow.usage())
    assert fast.counts.prompts <= len(requests)
    assert (slow.usage().live, slow.usage().held) == (0, 0)


@many
@given(policies(), schedulers(), workloads(), st.lists(st.integers(1, 10**12), max_size=3), st.integers(1, 10**12))
def test_marks_and_an_early_stop(make_policy, make_scheduler, requests, marks, stop):
    check_run(requests, lambda: make_scheduler(make_policy()), marks, stop)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(policies([ContiguousMax, ContiguousPow2, ContiguousOracle]), workloads(), st.integers(1, 9))
def test_static_batches(make_policy, requests, max_batch_size):
    check_run(requests, lambda: StaticBatch(make_policy(), Recompute(), max_batch_size))


def test_everything_is_given_back_at_the_end():
    policy = Paged(PoolSpec(600, MAX_LEN, 300))
    requests = [Request(i, i * PS // 1000, 50, 70) for i in range(40)]
    run(requests, SeparatePrefill(policy, Swap()), (), 1 << 62, True)
    used = policy.usage()
    assert (used.live, used.held, used.free) == (0, 0, used.total)
