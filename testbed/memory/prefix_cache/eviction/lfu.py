"""Least frequently used."""

from testbed.memory.prefix_cache.eviction.ranked import Ranked
from testbed.memory.prefix_cache.prefix_index import Node


class Lfu(Ranked):
    """Evicts what the fewest prompts have found; among equals what has been parked longest."""

    def rank(self, node: Node) -> int:
        return node.hits
