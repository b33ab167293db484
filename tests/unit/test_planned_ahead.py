"""Asynchronous scheduling by example: what is planned before the results of the last iteration are in."""

import pytest
from by_hand import ByHand

from testbed.core.request import Request
from testbed.cost.model import Affine, CostModel
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec
from testbed.sched.preemption import Recompute
from testbed.sched.vllm_v1 import AsyncVllmV1, VllmV1
from testbed.sim.simulation import simulate

LIMITS = {
    "max_num_batched_tokens": 64,
    "max_num_seqs": 8,
    "long_prefill_token_threshold": 0,
    "scheduler_reserve_full_isl": True,
}
TICK = 1000


class OneTick(CostModel):
    """Every iteration takes 1000 ps."""

    def __init__(self):
        pass

    def iteration(self, work):
        return TICK

    def decode(self, work):
        return Affine(TICK, 0, 1 << 40)


def scheduler(num_blocks=100, *, ignore_eos=True, **limits):
    policy = Paged(PoolSpec(num_blocks * 4, 1000), block_size=4, watermark=0)
    return AsyncVllmV1(policy, Recompute(), **{**LIMITS, **limits}, ignore_eos=ignore_eos)


def times(made, *requests):
    """First token and finish of each request, in ticks."""
    rows = [Request(i, arrival, *lengths) for i, (arrival, *lengths) in enumerate(requests)]
    columns = simulate(rows, made, OneTick(), 1000).requests.columns()
    order = columns["request_id"].argsort()
    firsts, ends = (columns[name][order] / TICK for name in ("first_token_ps", "finish_ps"))
    return list(zip(firsts.tolist(), ends.tolist(), strict=True))


def test_a_request_that_arrives_while_an_iteration_runs_begins_one_later():
    requests = [(0, 4, 10), (2500, 4, 2)]
    sync = VllmV1(Paged(PoolSpec(400, 1000), block_size=4, watermark=0), Recompute(), **LIMITS)
    assert times(sync, *requests) == [(1, 10), (4, 5)]
    assert times(scheduler(), *requests) == [(1, 10), (5, 6)]


def test_after_a_pause_it_begins_at_once():
    assert times(scheduler(), (0, 4, 2), (5500, 4, 2)) == [(1, 2), (6.5, 7.5)]


def test_it_begins_when_the_last_results_are_in_where_nothing_could_be_planned_ahead():
    assert times(scheduler(), (0, 4, 2), (1500, 4, 2)) == [(1, 2), (3, 4)]


def test_an_output_that_ends_unforeseen_takes_one_more_step_which_an_arrival_waits_for():
    assert times(scheduler(ignore_eos=False), (0, 4, 2), (1500, 4, 2)) == [(1, 2), (4, 5)]


@pytest.mark.parametrize(("ignore_eos", "steps"), [(True, [2, 1, 1]), (False, [2, 2, 1])])
def test_the_answer_is_not_late_but_place_and_room_are_freed_one_step_late(ignore_eos, steps):
    run = ByHand(scheduler(ignore_eos=ignore_eos, max_num_seqs=2))
    run.add(Request(0, 0, 4, 2))
    run.add(Request(1, 0, 4, 9))
    run.step()
    first = run.residents.running[0]
    run.add(Request(2, 0, 4, 9))
    taken = []
    plan, outcome = run.step()
    taken.append(plan.decode_seqs)
    assert outcome.finished == [first]
    assert run.policy.usage().held == 16  # two blocks each
    plan, _ = run.step()
    taken.append(plan.decode_seqs)
    assert not plan.chunks  # the place was not free when this was planned
    assert run.policy.usage().held == 8
    plan, _ = run.step()
    taken.append(plan.decode_seqs)
    assert [chunk.group.request.request_id for chunk in plan.chunks] == [2]
    assert taken == steps
    run.policy.check()


def test_who_lacks_room_preempts_another_though_results_are_about_to_free_some():
    run = ByHand(scheduler(4))
    for request in (Request(0, 0, 3, 2), Request(1, 0, 3, 9), Request(2, 0, 5, 9)):
        run.add(request)
    run.step()
    _, outcome = run.step()
    assert [group.request.request_id for group in outcome.finished] == [0]
    last = run.residents.running[2]
    plan, _ = run.step()  # the second request needs a block; that of the first is still held
    assert (plan.preempted, plan.decode_seqs) == ([last], 1)
    run.policy.check()


def test_groups_that_have_ended_give_way_where_the_last_is_one_of_them_and_nobody_is_let_in():
    run = ByHand(scheduler(3))
    for request in (Request(0, 0, 3, 9), Request(1, 0, 5, 2)):
        run.add(request)
    run.step()
    run.add(Request(2, 0, 2, 1))
    _, outcome = run.step()
    assert [group.request.request_id for group in outcome.finished] == [1]
    plan, _ = run.step()
    assert (plan.preempted, plan.decode_seqs, plan.chunks) == ([], 1, [])
    assert run.policy.usage().free == 4
    plan, _ = run.step()
    assert [chunk.group.request.request_id for chunk in plan.chunks] == [2]
    run.policy.check()


def test_the_only_one_left_is_not_preempted_while_ended_ones_hold_room():
    run = ByHand(scheduler(3))
    for request in (Request(0, 0, 5, 2), Request(1, 0, 3, 9)):
        run.add(request)
    run.step()
    run.step()
    plan, _ = run.step()
    assert (plan.preempted, plan.decode_seqs) == ([], 1)
    run.policy.check()
