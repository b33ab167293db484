"""The time of the transfers of a simulated run, by way."""

from collections import Counter
from dataclasses import replace

from testbed.core.request import PS
from testbed.core.slots import DEVICE, HOST
from testbed.cost.model import CostModel
from testbed.cost.swap_overlap import swapped
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.run_folder import read_config
from testbed.run.build import build
from testbed.run.simulate import run_setup


class TransferTotals(CostModel):
    """The costs of a run; ps: the total time of its swaps and transfers by way, each alone."""

    def __init__(self, cost):
        self._cost = cost
        self.ps = Counter()

    def iteration(self, work):
        for way, moves in swapped(work.moves).items():
            self.ps[way] += self._cost.swap_ps(way, moves)
        # An iteration writes evicted blocks to a tier; loads are transfers of their own.
        written = tuple(move for move in work.moves if HOST not in (move.source, move.target))
        if written:
            self.transfer(written)
        return self._cost.iteration(work)

    def decode(self, work):
        return self._cost.decode(work)

    def transfer(self, moves):
        duration_ps = self._cost.transfer(moves)
        self.ps["load" if moves[0].target == DEVICE else "store"] += duration_ps
        return duration_ps


def simulated_seconds(folder):
    """The seconds of swaps, loads and stores of a run that the engine served, by way. Its folder
    states the costs as they were divided then: those of today's options are taken.
    """
    cost = configured(("server=h200", "~server.kv_memory_gib")).cost
    setup = build(replace(read_config(folder), engine=None, cost=cost))
    totals = TransferTotals(setup.cost)
    run_setup(replace(setup, parts=replace(setup.parts, cost=totals)))
    return {way: ps / PS for way, ps in (+totals.ps).items()}
