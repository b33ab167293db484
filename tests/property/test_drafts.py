"""Speculative decoding changes when tokens come, and not which, nor how many, by any measure."""

import hypothesis.strategies as st
import pytest
from depth import examples
from drafting import speculating_schedulers
from hypothesis import HealthCheck, given, settings
from listening import listened
from same_runs import check_both_ways
from strategies import (
    MAX_LEN,
    of_one_sequence,
    policies,
    with_shared_prompts,
    workloads,
)
from tiny import MODEL, analytic, server

from testbed.cost.analytic import AnalyticCost, Efficiencies
from testbed.cost.speculative import SpeculativeCost
from testbed.memory.contiguous.reservations import ContiguousMax
from testbed.memory.paged.paged import Paged
from testbed.memory.prefix_cache.output_caching import OutputCaching
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.sched.preemption import Recompute
from testbed.sched.vllm_v1 import VllmV1

PROFILED = analytic(overhead_s=1e-3, overhead_per_request_s=1e-4, repeated_read=0.3)
LAUNCHED = analytic(overhead_s=1e-3, launch_s=2e-3)  # prompts take the plain path
DRAFTER = AnalyticCost(MODEL, server(), Efficiencies())

WITHOUT = {
    "max_num_batched_tokens": 60,
    "max_num_seqs": 40,
    "long_prefill_token_threshold": 0,
    "scheduler_reserve_full_isl": True,
}


def drawn(draw, classes, prefix=0):
    """A factory of policies, one of schedulers with drafts, and requests."""
    make_policy = draw(policies(classes=classes, prefix=prefix))
    build = draw(speculating_schedulers(truncates=classes == (Paged,)))
    strategy = workloads(prefix) if classes[0] is Paged else with_shared_prompts(workloads())

    def make():
        policy = make_policy()
        policy.max_len = MAX_LEN
        return build(policy)

    return make_policy, make, of_one_sequence(draw(strategy))


def cost_of(speculation, cost=PROFILED):
    return SpeculativeCost(cost, DRAFTER, speculation.max_drafts, speculation.off_above)


@st.composite
def drafting_runs(draw, classes):
    """A factory of schedulers with drafts, the requests, a cost, and how drafts are accepted."""
    prefix = draw(st.sampled_from([0, 5])) if classes[0] is Paged else 0  # its end is copied
    _, make, requests = drawn(draw, classes, prefix)
    speculation = make().drafter
    cost = cost_of(speculation, draw(st.sampled_from([PROFILED, LAUNCHED])))
    return make, requests, cost, {"acceptance": speculation.acceptance}


def check_whole_run(whole_run):
    """A run is the same in spans and step by step."""
    make, requests, cost, options = whole_run
    check_both_ways(requests, make, cost, MAX_LEN, **options)


def answers(requests, scheduler, cost, **options):
    """Of each request whether it was answered, its prompt and output, and the tokens that a
    listener has got; and the generated tokens of all.
    """
    recorder, listener = listened(requests, scheduler, cost, **options)
    assert recorder.totals.arrived == recorder.totals.finished + recorder.totals.rejected
    assert scheduler.policy.usage().held == 0
    scheduler.policy.check()
    columns = recorder.requests.columns()
    names = ("request_id", "prompt_len", "output_len", "finish_ps")
    rows = sorted(zip(*(columns[name].tolist() for name in names), strict=True))
    of_each = [
        (number, prompt_len, output_len, finish_ps >= 0, len(listener.times_ps[number]))
        for number, prompt_len, output_len, finish_ps in rows
    ]
    return of_each, recorder.totals.generated


RUNS = {
    "paged": (Paged,),
    "caching": (OutputCaching, PrefixCaching),
    "contiguous": (ContiguousMax,),
}
ALL_CHECKS = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}


many = settings(max_examples=examples(20), **ALL_CHECKS)


@pytest.mark.parametrize("name", RUNS)
@given(data=st.data())
@settings(max_examples=6, **ALL_CHECKS)
def test_fast_runs_with_drafts_equal_slow_ones(name, data):
    check_whole_run(data.draw(drafting_runs(RUNS[name])))


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
@given(data=st.data())
@settings(max_examples=100, **ALL_CHECKS)
def test_300_fast_runs_with_drafts_equal_slow_ones(name, data):
    check_whole_run(data.draw(drafting_runs(RUNS[name])))


@many
@pytest.mark.parametrize("name", RUNS)
@given(data=st.data())
def test_answers_with_drafts_are_those_without(name, data):
    make_policy, make, requests = drawn(data.draw, RUNS[name])
    scheduler = make()
    speculation = scheduler.drafter
    with_drafts = answers(
        requests, scheduler, cost_of(speculation), acceptance=speculation.acceptance
    )
    plain = VllmV1(make_policy(), Recompute(), **WITHOUT)
    assert with_drafts == answers(requests, plain, PROFILED)
    of_each, _ = with_drafts
    lengths = {request.request_id: request.output_len for request in requests}
    for number, _, output_len, is_answered, num_tokens in of_each:
        assert output_len == lengths[number]
        assert num_tokens == (output_len if is_answered else 0)
