"""Speculative decoding changes when tokens come, and not which, nor how many; whoever measures."""

from functools import partial

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, seed, settings
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
from testbed.sched.speculating_v1 import AsyncSpeculatingV1, SpeculatingV1
from testbed.speculation.acceptance import Constant, Markov, PerPosition
from testbed.speculation.heads import Heads
from testbed.speculation.ngram import NGram

PROFILED = analytic(overhead_s=1e-3, overhead_per_request_s=1e-4, repeated_read=0.3)
DRAFTER = AnalyticCost(MODEL, server(), Efficiencies())
ACCEPTANCES = (
    partial(Constant, 0.0),
    partial(Constant, 1.0),
    partial(Constant, 0.6),
    partial(PerPosition, [0.9, 0.5, 0.5]),
    partial(Markov, 0.9, 0.2, 0.1, 0.3),
)


@st.composite
def speculating_schedulers(draw, truncates):
    """A function that makes a scheduler that speculates, over a policy of the same make."""
    limits = {
        "max_num_seqs": draw(st.sampled_from([2, 40])),
        "max_num_batched_tokens": draw(st.sampled_from([40, 60, 300])),
        "long_prefill_token_threshold": draw(st.sampled_from([0, 3, 16])),
        "scheduler_reserve_full_isl": draw(st.booleans()),
    }
    options = {
        "num_drafts": draw(st.integers(1, 5)),
        "acceptance": draw(st.sampled_from(ACCEPTANCES))(seed=draw(st.integers(0, 99))),
    }
    if draw(st.booleans()):
        speculation = Heads(**options)
        ahead = {"ignore_eos": draw(st.booleans())}
        return partial(made, AsyncSpeculatingV1, speculation, limits | ahead)
    kind = draw(st.sampled_from([Heads, NGram, partial(NGram, found_share=0.4)]))
    keeps = not truncates or draw(st.booleans())
    off_above = draw(st.sampled_from([None, 1, 4]))
    speculation = kind(**options, keeps_slots=keeps, off_above=off_above)
    return partial(made, SpeculatingV1, speculation, limits)


def made(scheduler, speculation, options, policy):
    return scheduler(
        policy, Recompute(), speculation=speculation, max_len=policy.max_len, **options
    )


def check_runs(data, classes):
    """A run with drafts is the same however it is measured, and answers what one without does."""
    make_policy = data.draw(policies(classes=classes))
    build = data.draw(speculating_schedulers(truncates=classes == (Paged,)))
    strategy = workloads() if classes[0] is Paged else with_shared_prompts(workloads())
    requests = of_one_sequence(data.draw(strategy))

    def make():
        policy = make_policy()
        policy.max_len = MAX_LEN
        return build(policy)

    speculation = make().speculation
    cost = SpeculativeCost(PROFILED, DRAFTER, speculation.max_drafts, speculation.off_above)
    check_both_ways(requests, make, cost, MAX_LEN, acceptance=speculation.acceptance)


RUNS = {
    "paged": (Paged,),
    "caching": (OutputCaching, PrefixCaching),
    "contiguous": (ContiguousMax,),
}
ALL_CHECKS = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}


@pytest.mark.parametrize("name", RUNS)
@given(data=st.data())
@seed(0)
@settings(max_examples=6, **ALL_CHECKS)
def test_fast_runs_with_drafts_equal_slow_ones(name, data):
    check_runs(data, RUNS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
@given(data=st.data())
@seed(1)
@settings(max_examples=100, **ALL_CHECKS)
def test_300_fast_runs_with_drafts_equal_slow_ones(name, data):
    check_runs(data, RUNS[name])
