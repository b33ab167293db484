"""An arrival at the very moment at which an iteration ends is seen by the next plan."""

import pytest
from by_hand import scheduler_of
from ticks import MS, FastMillisecond

from testbed.core.request import Request
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec
from testbed.sched.preemption import Recompute
from testbed.sched.separate import SeparatePrefill
from testbed.sim.simulation import simulate


def first_tokens_ms(requests, fast_forward):
    scheduler = scheduler_of(SeparatePrefill, Paged(PoolSpec(1024, 512)), Recompute())
    columns = simulate(requests, scheduler, FastMillisecond(), 512, fast_forward=fast_forward).requests.columns()
    return {i: t / MS for i, t in zip(columns["request_id"].tolist(), columns["first_token_ps"].tolist(), strict=True)}


@pytest.mark.parametrize("fast_forward", [True, False])
@pytest.mark.parametrize("arrival_ms", [1, 2, 57])
def test_at_the_end_of_an_iteration_it_is_served_next(arrival_ms, fast_forward):
    requests = [Request(0, 0, 10, 200), Request(1, arrival_ms * MS, 10, 2)]
    assert first_tokens_ms(requests, fast_forward) == {0: 1, 1: arrival_ms + 1}


@pytest.mark.parametrize("fast_forward", [True, False])
def test_a_moment_later_it_waits_for_the_iteration_under_way(fast_forward):
    requests = [Request(0, 0, 10, 200), Request(1, 57 * MS + 1, 10, 2)]
    assert first_tokens_ms(requests, fast_forward) == {0: 1, 1: 59}


@pytest.mark.parametrize("fast_forward", [True, False])
def test_when_the_last_request_ends_it_does_not_wait(fast_forward):
    requests = [Request(0, 0, 10, 5), Request(1, 5 * MS, 10, 2)]
    assert first_tokens_ms(requests, fast_forward) == {0: 1, 1: 6}
