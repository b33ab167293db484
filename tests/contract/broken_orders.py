"""Eviction orders that break one clause each; `testbed check` must name it."""

from collections import OrderedDict
from itertools import count
from random import Random
from typing import ClassVar

from broken_parts import BrokenParts

from testbed.memory.prefix_cache.eviction.lru import Lru
from testbed.memory.prefix_cache.eviction.order import EvictionOrder
from testbed.memory.prefix_cache.eviction.ranked import Fifo, Ranked

BROKEN = BrokenParts()
breaks = BROKEN.breaks
CALLS = count()
RANDOM = Random(0)


@breaks(13)
class EvictsWhatIsHeld(Lru):
    """A hit does not take the node out of the queue."""

    def hit(self, nodes):
        """Nothing."""


@breaks(13)
class NamesAVictimTwice(Lru):
    """The victim stays in the queue, as the last."""

    def victim(self):
        node = super().victim()
        self._queue[node] = None
        return node

    def victims(self, count):
        return EvictionOrder.victims(self, count)


@breaks(14)
class LosesTheBeginning(Lru):
    """Only the first of several nodes that are added together is remembered."""

    def add(self, nodes):
        super().add(nodes[:1])


@breaks(14)
class InventsAVictim(Lru):
    """At its end it names the last victim again."""

    last = None

    def victims(self, count):
        return EvictionOrder.victims(self, count)

    def victim(self):
        if self._queue:
            self.last = super().victim()
        return self.last


@breaks(15)
class NamesTooFew(Lru):
    def victims(self, count):
        return super().victims(count)[: max(count - 1, 1)]


@breaks(15)
class SeveralVictimsNewestFirst(Lru):
    """A list of several has the right nodes in the opposite order."""

    def victims(self, count):
        return super().victims(count)[::-1]


@breaks(16)
class SharesItsQueue(EvictionOrder):
    """The queue is the class's, so that all orders have one."""

    queue: ClassVar = OrderedDict()

    def add(self, nodes):
        for node in nodes:
            self.queue[node] = None

    def hit(self, nodes):
        for node in nodes:
            self.queue.pop(node, None)

    def victim(self):
        return self.queue.popitem(last=False)[0]


@breaks(16)
class CountsHitsItself(Lru):
    def hit(self, nodes):
        super().hit(nodes)
        for node in nodes:
            node.hits += 1


@breaks(9)
class ChoosesAtRandom(Lru):
    def victim(self):
        node = RANDOM.choice(list(self._queue))
        del self._queue[node]
        return node

    def victims(self, count):
        return EvictionOrder.victims(self, count)


@breaks(9)
class DependsOnEarlierRuns(Fifo):
    """A counter of the module ranks the nodes."""

    def rank(self, node):
        return next(CALLS) * 7919 % 13


@breaks(10)
class RanksByNothing(Ranked):
    """No number compares with NaN."""

    def rank(self, node):
        return float("nan")


@breaks(10)
class RanksByNone(Ranked):
    def rank(self, node):
        return None


@breaks(10)
class NamesABlock(Lru):
    """A victim is a node, not the number of its block."""

    def victim(self):
        return super().victim().block

    def victims(self, count):
        return EvictionOrder.victims(self, count)


@breaks(10)
class FailsOnUnknownSessions(Lru):
    def __init__(self):
        super().__init__()
        self.sessions = {}

    def close_session(self, session):
        del self.sessions[session]
