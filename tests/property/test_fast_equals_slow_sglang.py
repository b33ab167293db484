"""Runs with SGLang's scheduler and its radix cache, many steps at once and step by step."""

from functools import partial

import hypothesis.strategies as st
from depth import examples
from hypothesis import HealthCheck, given, settings
from strategies import MAX_LEN, policies, schedulers, with_answers, with_shared_prompts, workloads
from test_fast_equals_slow import ANALYTIC, MEASURED, check_run

from testbed.memory.paged.paged import Paged
from testbed.memory.radix.radix import Radix
from testbed.sched.preemption import Recompute
from testbed.sched.sglang import SGLang
from testbed.sched.sglang_overlap import OverlappedSGLang

many = settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
OPTIONS = st.fixed_dictionaries(
    {
        "max_running_requests": st.sampled_from([2, 5, 40]),
        "max_prefill_tokens": st.sampled_from([20, 300]),
        "chunked_prefill_size": st.sampled_from([None, 48, 144]),
        "enable_mixed_chunk": st.booleans(),
        "schedule_policy": st.sampled_from(["fcfs", "lpm", "hrrn", "lof", "dfs-weight", "random"]),
        "schedule_conservativeness": st.sampled_from([0.1, 1.0]),
        "new_token_ratio_decay_steps": st.sampled_from([5, 600]),
    }
)


@st.composite
def declaring(draw, requests):
    """Requests that declare their output, or twice as much, or nothing."""
    factor = draw(st.sampled_from([1, 2, None]))
    return [
        request._replace(max_new_tokens=factor and factor * request.output_len)
        for request in draw(requests)
    ]


SHARED = with_shared_prompts(workloads())
REQUESTS = declaring(st.one_of(workloads(), SHARED, with_answers(SHARED)))


@st.composite
def sglang_runs(draw):
    """A function that makes SGLang's scheduler with its policy, the requests, a cost, and what else
    a run is given.
    """
    make_policy = draw(policies([Radix, Radix, Paged]))
    kind, options = draw(st.sampled_from([SGLang, OverlappedSGLang])), draw(OPTIONS)
    chunk, block_size = options["chunked_prefill_size"], make_policy().block_size
    if chunk and chunk % block_size:
        options = {**options, "chunked_prefill_size": None}
    make = partial(kind, preemption=Recompute(), context_length=MAX_LEN, **options)
    cost = draw(st.sampled_from([ANALYTIC, MEASURED]))
    return lambda: make(make_policy()), draw(REQUESTS), cost, {}


@many
@given(sglang_runs())
def test_fast_equals_slow_with_sglang(whole_run):
    make, requests, cost, _ = whole_run
    check_run(requests, make, cost=cost)


@many
@given(policies([Radix]), schedulers(), with_shared_prompts(workloads()))
def test_fast_equals_slow_with_the_radix_cache_under_other_schedulers(
    make_policy, make_scheduler, requests
):
    check_run(requests, lambda: make_scheduler(make_policy()))
