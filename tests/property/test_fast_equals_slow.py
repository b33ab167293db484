"""Fast must equal slow, bit for bit: fast-forwarded spans against one event per iteration and
walked tables.
"""

from dataclasses import replace

import hypothesis.strategies as st
from depth import examples
from hypothesis import HealthCheck, given, settings
from same_runs import check_both_ways
from strategies import (
    CONTIGUOUS,
    MAX_LEN,
    bounded_workloads,
    grouped_policies,
    mixed_workloads,
    of_one_sequence,
    policies,
    ranked_schedulers,
    schedulers,
    session_workloads,
    tiered_policies,
    vllm_schedulers,
    with_answers,
    with_ranks,
    with_shared_prompts,
    workloads,
)
from tiny import MODEL, analytic, server

from testbed.core.layers import KvGroup, Window
from testbed.core.specs import ModelSpec, TierSpec
from testbed.cost.profile import ProfileCost, read_profile
from testbed.memory.groups.grouped import Grouped
from testbed.memory.paged.paged import Paged
from testbed.memory.paged.paged_2023 import Paged2023
from testbed.memory.prefix_cache.output_caching import OutputCaching
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.memory.tiers.tiered_caching import TieredCaching
from testbed.sched.preemption import Recompute
from testbed.sched.static_batch import StaticBatch

# Of every cost, a shared token that is read again takes less time than one that is read once
ANALYTIC = analytic(overhead_s=1e-3, overhead_per_request_s=1e-4, copy_s=1e-5, repeated_read=0.3)
WINDOWED_MODEL = replace(MODEL, window=Window(20, 1), kv_dtype_bytes=1)
WINDOWED = analytic(model=WINDOWED_MODEL, overhead_s=1e-3, copy_s=1e-5, repeated_read=0.3)
TIERED = analytic(
    replace(server(), tiers={"dram": TierSpec(1)}), overhead_s=1e-3, copy_s=1e-5, repeated_read=0.3
)
PROFILE = read_profile("h200-opt-13b-tp1")
MEASURED = ProfileCost(ModelSpec(**PROFILE["model"]), None, PROFILE)
COSTS = ANALYTIC, WINDOWED, MEASURED
PREFIX = 21
# Of eight layers, so that slots of all layers are soon more than the tokens that decodes read
GROUPS = (
    KvGroup("full", num_layers=6, slot_bytes=64),
    KvGroup("window", num_layers=2, slot_bytes=64, window=20),
)


def check_run(requests, make_scheduler, cost=ANALYTIC, **options):
    """Both ways agree."""
    check_both_ways(requests, make_scheduler, cost, MAX_LEN, **options)


many = settings(max_examples=examples(30), deadline=None, suppress_health_check=list(HealthCheck))
ANY_POLICY = st.one_of(policies(), policies([Paged2023, PrefixCaching, OutputCaching]))


@many
@given(
    ANY_POLICY,
    schedulers(),
    st.one_of(workloads(), workloads(), mixed_workloads(), with_shared_prompts(workloads())),
    st.sampled_from([ANALYTIC, WINDOWED, MEASURED]),
)
def test_fast_equals_slow_with_iteration_level_scheduling(
    make_policy, make_scheduler, requests, cost
):
    check_run(requests, lambda: make_scheduler(make_policy()), cost=cost)


@many
@given(
    policies([OutputCaching]),
    vllm_schedulers(),
    st.one_of(
        workloads(),
        with_shared_prompts(workloads()),
        with_answers(with_shared_prompts(workloads())),
    ),
)
def test_fast_equals_slow_with_vllm_v1(make_policy, make_scheduler, requests):
    check_run(requests, lambda: make_scheduler(make_policy()))


SHARED = with_ranks(with_shared_prompts(st.one_of(workloads(), mixed_workloads())))
ANY_SCHEDULER = st.one_of(schedulers(), vllm_schedulers(), ranked_schedulers(), ranked_schedulers())
CACHING = st.one_of(policies([PrefixCaching, OutputCaching]), tiered_policies())


@many
@given(CACHING, ANY_SCHEDULER, SHARED, st.sampled_from([TIERED, WINDOWED, MEASURED]))
def test_fast_equals_slow_with_shared_prompts_and_retention(
    make_policy, make_scheduler, requests, cost
):
    policy = make_policy()
    check_run(
        requests,
        lambda: make_scheduler(make_policy()),
        cost=TIERED if isinstance(policy, TieredCaching) else cost,
    )


@many
@given(
    grouped_policies(GROUPS),
    st.one_of(schedulers(), ranked_schedulers()),
    SHARED.map(of_one_sequence),
    st.sampled_from([ANALYTIC, WINDOWED]),
)
def test_fast_equals_slow_with_kv_groups(make_policy, make_scheduler, requests, cost):
    check_run(requests, lambda: make_scheduler(make_policy()), cost=cost)


@st.composite
def whole_runs(draw):
    """A function that makes the scheduler with its policy, the requests, a cost, and what else a
    run is given: of all kinds that go together.
    """
    groups = grouped_policies(GROUPS)
    prefixed = policies([Paged, PrefixCaching], prefix=PREFIX)
    make_policy = draw(st.one_of(ANY_POLICY, CACHING, CACHING, groups, prefixed))
    policy = make_policy()
    open_loop = with_ranks(
        st.one_of(with_shared_prompts(workloads(PREFIX)), workloads(), mixed_workloads())
    )
    if isinstance(policy, Grouped):
        loops = session_workloads((1,)), bounded_workloads((1,))
        requests = draw(st.one_of(open_loop.map(of_one_sequence), *loops))
    else:
        requests = draw(st.one_of(open_loop, session_workloads(), bounded_workloads()))
    make_scheduler = draw(ANY_SCHEDULER)
    cost = TIERED if isinstance(policy, TieredCaching) else draw(st.sampled_from(COSTS))
    return lambda: make_scheduler(make_policy()), requests, cost, {}


@many
@given(
    policies([Paged, PrefixCaching], prefix=PREFIX),
    schedulers(),
    with_shared_prompts(workloads(PREFIX)),
)
def test_fast_equals_slow_with_registered_prefixes(make_policy, make_scheduler, requests):
    check_run(requests, lambda: make_scheduler(make_policy()))


@many
@given(
    ANY_POLICY,
    schedulers(),
    workloads(),
    st.lists(st.integers(1, 10**12), max_size=3),
    st.integers(1, 10**12),
)
def test_fast_equals_slow_with_marks_and_an_early_stop(
    make_policy, make_scheduler, requests, marks, stop
):
    check_run(
        requests,
        lambda: make_scheduler(make_policy()),
        whole=False,
        snapshots_ps=marks,
        stop_ps=stop,
    )


@many
@given(policies(CONTIGUOUS), workloads(), st.integers(1, 9), st.sampled_from([ANALYTIC, MEASURED]))
def test_fast_equals_slow_with_static_batches(make_policy, requests, max_batch_size, cost):
    def make():
        policy = make_policy()
        lengths = getattr(policy, "lengths", None)
        return StaticBatch(
            policy,
            Recompute(),
            max_batch_size=max_batch_size,
            max_padded_len=MAX_LEN,
            lengths={} if lengths is None else lengths,
        )

    check_run(requests, make, cost=cost)


@many
@given(
    policies([Paged, PrefixCaching]),
    ANY_SCHEDULER,
    st.one_of(session_workloads(), bounded_workloads()),
)
def test_fast_equals_slow_where_answers_decide_arrivals(make_policy, make_scheduler, workload):
    check_run(workload, lambda: make_scheduler(make_policy()))
