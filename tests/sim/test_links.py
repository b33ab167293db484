"""Transfers in the background share links, and land when a link with these rules would have carried them."""

import pytest
import simpy

from testbed.core.slots import DEVICE, Copy, Move, Transfer
from testbed.cost.model import CostModel
from testbed.sim.calendar import Links


class OnePsASlot(CostModel):
    def iteration(self, work):
        return 1

    def transfer(self, moves):
        return sum(move.length * move.num_transfers for move in moves)


def transfer(move_id, num_slots, is_load=True, tier="dram"):
    ends = (tier, DEVICE) if is_load else (DEVICE, tier)
    return Transfer(move_id, Move(*ends, (Copy(0, 0, num_slots),)))


def landings(begins):
    """When each transfer lands, of those that begin at given times, in order."""
    env, seen = simpy.Environment(0), []
    links = Links(env, OnePsASlot(), lambda: seen.extend((env.now, one) for one in links.take_landed()))

    def clients():
        for begin_ps, one in begins:
            yield env.timeout(begin_ps - env.now)
            links.begin([one])

    env.process(clients())
    env.run()
    assert not links.num_pending
    return seen


@pytest.mark.parametrize(
    ("begins", "expected"),
    {
        "one has the link to itself": ([(5, transfer(1, 10))], [(15, 1)]),
        "two loads share it": ([(0, transfer(1, 10)), (0, transfer(2, 20))], [(20, 1), (30, 2)]),
        "a later load slows down the first": ([(0, transfer(1, 10)), (4, transfer(2, 3))], [(10, 2), (13, 1)]),
        "stores wait for loads": ([(0, transfer(1, 10, False)), (4, transfer(2, 10))], [(14, 2), (20, 1)]),
        "each tier has a link": ([(0, transfer(1, 10)), (0, transfer(2, 10, True, "nvme"))], [(10, 1), (10, 2)]),
    }.values(),
)  # fmt: skip
def test_transfers_share_a_link_equally_and_loads_go_first(begins, expected):
    assert landings(begins) == expected
