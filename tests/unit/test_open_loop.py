"""Requests come in at their own times, and before whatever else happens at the same moment."""

import pytest
import simpy
from by_hand import scheduler_of
from ticks import MS, FastMillisecond, OneMillisecond

from testbed.core.request import Request
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec
from testbed.sched.preemption import Recompute
from testbed.sched.separate import SeparatePrefill
from testbed.sim.open_loop import open_loop
from testbed.sim.simulation import simulate


class Door:
    """Notes who came when."""

    def __init__(self, env):
        self.env, self.came, self.closed_at = env, [], None

    def submit(self, request):
        self.came.append((self.env.now, request.request_id))

    def close(self):
        self.closed_at = self.env.now


def test_everybody_comes_at_its_own_time_and_the_door_closes_behind_the_last():
    env = simpy.Environment(0)
    door = Door(env)
    env.process(open_loop(env, door, [Request(i, at, 1, 1) for i, at in enumerate((3, 7, 7, 20))]))
    env.run()
    assert door.came == [(3, 0), (7, 1), (7, 2), (20, 3)]
    assert door.closed_at == 20


@pytest.mark.parametrize("cost", [OneMillisecond(), FastMillisecond()])
def test_an_iteration_that_ends_at_an_arrival_sees_it(cost):
    """The third request comes as the first iteration ends, which began before the second had come."""
    policy = Paged(PoolSpec(1600, 512), block_size=16)
    scheduler = scheduler_of(SeparatePrefill, policy, Recompute())
    requests = [Request(i, at, 16, 10) for i, at in enumerate((0, MS // 2, MS))]
    log = simulate(requests, scheduler, cost, 512).requests.columns()
    assert dict(zip(log["request_id"].tolist(), log["first_token_ps"].tolist(), strict=True)) == {
        0: MS, 1: 2 * MS, 2: 2 * MS,
    }  # fmt: skip
