"""Bounds beside every table of the arena: no cache, random victims, LRU, Belady, and a pool that
evicts nothing.
"""

from collections.abc import Iterable, Sequence

from testbed.experiments.arena.entrants import EVICTION, POLICY, Entrant
from testbed.experiments.runs.choice_names import KEYS
from testbed.memory.prefix_cache.eviction.order import EvictionOrder
from testbed.memory.prefix_cache.prefix_index import Node

LRU, BELADY, NOTHING, RANDOM, INFINITE = "lru", "belady", "no cache", "random", "infinite"
SEED, MULTIPLIER, INCREMENT, MODULUS = 1, 1103515245, 12345, 1 << 31  # of a linear congruence


class RandomOrder(EvictionOrder):
    """Evicts any evictable block, each as likely, by a generator with a fixed seed."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._state = SEED

    def add(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            node.memo = len(self._nodes)
            self._nodes.append(node)

    def hit(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            if node.evictable:
                self._remove(node)

    def victim(self) -> Node:
        self._state = (MULTIPLIER * self._state + INCREMENT) % MODULUS
        node = self._nodes[self._state * len(self._nodes) // MODULUS]
        self._remove(node)
        return node

    def _remove(self, node: Node) -> None:
        """The last node takes its place."""
        last = self._nodes.pop()
        if last is not node:
            self._nodes[node.memo], last.memo = last, node.memo


def _order(name: str, choice: str, *, is_infinite: bool = False) -> Entrant:
    return Entrant(name, EVICTION, (f"{KEYS[EVICTION]}={choice}",), is_infinite=is_infinite)


BOUNDS = (
    _order(LRU, LRU),
    Entrant(NOTHING, POLICY, ("policy=paged",)),
    _order(RANDOM, f"{__name__}:{RandomOrder.__name__}"),
    _order(BELADY, BELADY),
    _order(INFINITE, LRU, is_infinite=True),
)
NAMES = tuple(bound.name for bound in BOUNDS)
WHY = {
    NOTHING: "finds nothing",
    RANDOM: "evicts any block",
    LRU: "the reference of all differences",
    BELADY: "most hits of blocks of equal cost; no bound of latencies, since a block at the "
    "beginning of a prompt costs less to compute than one at its end",
    INFINITE: "a pool with room for the whole working set beside it",
}
