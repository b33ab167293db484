"""Policies and schedulers together, on a memory that stores tokens: what an iteration reads is there, and its own."""

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from strategies import CONTIGUOUS, MAX_LEN, policies, schedulers, vllm_schedulers, with_shared_prompts, workloads
from test_fast_equals_slow import ANALYTIC, PREFIX
from token_machine import Machine, watchable

from testbed.core.request import Request
from testbed.core.slots import HOST, NO_OPS, Grant
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec, host
from testbed.memory.prefix_cache.output_caching import OutputCaching
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import Recompute, Swap
from testbed.sched.separate import SeparatePrefill
from testbed.sched.static_batch import StaticBatch
from testbed.sim.simulation import simulate

PAGED, CACHING, CACHING_OUTPUTS = map(watchable, (Paged, PrefixCaching, OutputCaching))
RESERVING = [watchable(kind) for kind in CONTIGUOUS]
PLAIN = [PAGED, PAGED, PAGED, *RESERVING]
SCHEDULERS = [watchable(kind) for kind in (SeparatePrefill, MixedPrefill, ChunkedPrefill)]

many = settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def serve(requests, scheduler, prefix=0):
    """Serve all requests; nothing may be left, and tokens must have been read if anything was served."""
    machine = Machine(scheduler, prefix)
    recorder = simulate(requests, scheduler, ANALYTIC, MAX_LEN)
    assert recorder.totals.finished + recorder.totals.rejected == len(requests)
    assert machine.num_read or not recorder.totals.finished
    used = scheduler.policy.usage()
    assert used.held == used.live + len(machine.pinned) - prefix == len(machine.pinned)
    scheduler.policy.check()


@settings(many, max_examples=200)
@given(policies(PLAIN), schedulers(SCHEDULERS), workloads())
def test_reads_find_their_tokens_with_every_policy_and_scheduler(make_policy, make_scheduler, requests):
    serve(requests, make_scheduler(make_policy()))


@many
@given(policies([CACHING]), schedulers(SCHEDULERS), with_shared_prompts(workloads()))
def test_reads_find_their_tokens_with_prefix_caching(make_policy, make_scheduler, requests):
    serve(requests, make_scheduler(make_policy()))


@many
@given(policies([CACHING_OUTPUTS]), vllm_schedulers(), st.one_of(workloads(), with_shared_prompts(workloads())))
def test_reads_find_their_tokens_with_vllm_v1(make_policy, make_scheduler, requests):
    serve(requests, make_scheduler(make_policy()))


@many
@given(
    policies([PAGED, CACHING, CACHING_OUTPUTS], prefix=PREFIX),
    schedulers(SCHEDULERS),
    with_shared_prompts(workloads(PREFIX)),
)
def test_reads_find_their_tokens_with_registered_prefixes(make_policy, make_scheduler, requests):
    serve(requests, make_scheduler(make_policy()), PREFIX)


@many
@given(policies(RESERVING), workloads(), st.integers(1, 9))
def test_reads_find_their_tokens_with_static_batches(make_policy, requests, max_batch_size):
    limits = {"max_batch_size": max_batch_size, "max_padded_len": MAX_LEN}
    serve(requests, watchable(StaticBatch)(make_policy(), Recompute(), **limits))


class OmitsCopies(Paged):
    def extend(self, batch, num_tokens):
        answer = super().extend(batch, num_tokens)
        return answer._replace(ops=NO_OPS) if isinstance(answer, Grant) else answer


class OmitsSwapInCopies(Paged):
    def move(self, seqs, tier):
        answer = super().move(seqs, tier)
        return answer if tier == HOST or not isinstance(answer, Grant) else Grant()


class SharesPartialBlock(Paged):
    def _allocate_tables(self, seqs, each, common, found):
        return super()._allocate_tables(seqs, each, each, found)


@pytest.mark.parametrize("policy", [OmitsCopies, OmitsSwapInCopies, SharesPartialBlock])
def test_planted_memory_faults_are_detected(policy):
    requests = [Request(i, 0, 20, 50, num_seqs=2) for i in range(12)]
    rule = Recompute() if policy is SharesPartialBlock else Swap()
    scheduler = watchable(MixedPrefill)(
        policy(PoolSpec(300, MAX_LEN, host(1000)), 8), rule, max_num_batched_tokens=64, max_num_seqs=40
    )
    with pytest.raises(AssertionError, match="Sequence"):
        serve(requests, scheduler)
