"""Rules on the blocks that are stored below the device, and on the time."""

from collections.abc import Sequence
from typing import ClassVar

from testbed.core.errors import InputError, check_least
from testbed.core.units import Count
from testbed.memory.prefix_cache.eviction.lru import Lru
from testbed.memory.prefix_cache.prefix_index import Node
from testbed.memory.tiers.pinned_pool import PinnedPool


class StoreRule:
    """Chooses blocks; one that is below already is never stored again.

    Attributes:
        at_eviction: the iteration that takes an evicted block waits until it is written below. All
            other stores run in the background.
    """

    at_eviction: ClassVar[bool] = False

    def published(self, nodes: Sequence[Node]) -> Sequence[Node]:
        """The newly computed blocks to store.

        Args:
            nodes: blocks that will be computed when this iteration has run.
        """
        return ()

    def found(self, nodes: Sequence[Node]) -> Sequence[Node]:
        """The blocks to store, of those that were hit.

        Args:
            nodes: blocks that a prompt has found on the device.
        """
        return ()

    def ahead(self, pool: PinnedPool) -> Sequence[Node]:
        """The blocks to store, of those that will be evicted soon; called before every plan.

        Args:
            pool: the device's blocks.
        """
        return ()

    def guaranteed_blocks(self, pool: PinnedPool) -> int:
        """Blocks that may be taken without a store.

        Args:
            pool: the device's blocks.
        """
        return pool.available()


class WriteThrough(StoreRule):
    """Every prompt block as soon as it is computed, and again when a prompt finds it on the device
    alone.
    """

    def published(self, nodes: Sequence[Node]) -> Sequence[Node]:
        return nodes

    def found(self, nodes: Sequence[Node]) -> Sequence[Node]:
        return nodes


class OnReuse(StoreRule):
    """A block that num_hits prompts have found."""

    def __init__(self, num_hits: Count = 1) -> None:
        check_least(1, num_hits=num_hits)
        self.num_hits = num_hits

    def found(self, nodes: Sequence[Node]) -> Sequence[Node]:
        return [node for node in nodes if node.hits >= self.num_hits]


class WriteBack(StoreRule):
    """A block when it is evicted."""

    at_eviction: ClassVar[bool] = True

    def guaranteed_blocks(self, pool: PinnedPool) -> int:
        return len(pool.free)


class BeforeEviction(StoreRule):
    """The next `margin` LRU victims less free blocks (LMCache's lazy storing); one evicted before
    its turn is lost.
    """

    def __init__(self, margin: Count = 256) -> None:
        check_least(1, margin=margin)
        self.margin = margin

    def ahead(self, pool: PinnedPool) -> Sequence[Node]:
        order = pool.order
        if not isinstance(order, Lru):
            raise InputError(
                key="store rule BeforeEviction",
                problem=f"{type(order).__name__} names no next victims",
                remedy="use lru",
            )
        return order.upcoming(self.margin - len(pool.free)) if len(pool.free) < self.margin else ()

    def guaranteed_blocks(self, pool: PinnedPool) -> int:
        return max(len(pool.free) - self.margin, 0)
