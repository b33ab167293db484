"""An eviction order in one method."""

from testbed.memory.prefix_cache.eviction.ranked import Ranked
from testbed.memory.prefix_cache.prefix_index import Node


class DeepestFirst(Ranked):
    """Evicts the block that lies deepest in its prompt, so that beginnings stay."""

    def rank(self, node: Node) -> int:
        return -node.depth
