"""Policies that try to look better than they are, or that cost others their rows."""

import atexit
import time

from testbed.fleet.routers.router import Router
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec
from testbed.memory.prefix_cache.eviction.lru import Lru


class TwiceThePool(Paged):
    """Says that it has twice the slots."""

    def __init__(self, pool, block_size=16):
        super().__init__(PoolSpec(2 * pool.num_slots, pool.max_len), block_size)


class RaisesAtOnce(Lru):
    def add(self, nodes):
        raise RuntimeError("at once")


class Sleeps(Lru):
    def victims(self, count):
        time.sleep(3600)
        return super().victims(count)


class TakesMemory(Lru):
    def __init__(self):
        super().__init__()
        self.hoard = bytearray(1 << 36)


class Exits(Lru):
    def __init__(self):
        raise SystemExit(0)


class NamesNoVictim(Lru):
    def victims(self, count):
        return []


class ReadsLengths(Paged):
    """Asks for the true output lengths."""

    def __init__(self, pool, lengths, block_size=16):
        super().__init__(pool, block_size)
        self.lengths = lengths


class ReadsPrompts(Lru):
    """Asks for the prompts to come."""

    def foresee(self, chains):
        self.chains = list(chains)

    def requested(self, chain):
        pass


class LearnsFromRuns(Lru):
    """Evicts the newest in all runs of a process but the first."""

    num_runs = 0

    def __init__(self):
        super().__init__()
        type(self).num_runs += 1
        self.is_first = self.num_runs == 1

    def victims(self, count):
        found = super().victims(count)
        return found if self.is_first else found[::-1]


class RaisesAtTheEnd(Lru):
    """Is well behaved until its process ends."""

    def __init__(self):
        super().__init__()
        atexit.register(lambda: 1 / 0)


class KnowsAnswers(Router):
    """Goes where the fewest tokens are to come, which no router can know."""

    def route(self, request, engines):
        return min(engines, key=self.left)

    def left(self, view):
        return sum(one.output_len for one in view.engine.outputs.requests.values())


class IsNoPolicy:
    pass
