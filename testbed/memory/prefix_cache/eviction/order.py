"""The plug-in API for eviction orders."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from testbed.memory.prefix_cache.prefix_index import Node
from testbed.memory.protocols import ForeseesChains


class EvictionOrder(ABC):
    """Chooses among evictable nodes: cached blocks whose reference count is 0.

    An order sees which nodes become evictable and which are hit, and names victims; it has no clock
    and no random numbers. It may keep its state of a node in node.memo, which is None whenever the
    node is new to the cache. node.hits counts the prompts that have found the node; node.evictable
    says whether it may be a victim. `testbed check` tests an order
    (testbed/checks/contract/order_contract.py).

    Attributes:
        session: that of the sequence whose slots come back, when nodes are added; None if it is
            unknown.
        num_blocks: blocks of the pool that the order serves; its pool sets it.
    """

    session: int | None = None
    num_blocks: int = 0

    @abstractmethod
    def add(self, nodes: Sequence[Node]) -> None:
        """These nodes' reference counts are now 0.

        Args:
            nodes: the end of a sequence comes before its beginning.
        """

    @abstractmethod
    def hit(self, nodes: Sequence[Node]) -> None:
        """A prompt has found nodes, and holds them.

        Args:
            nodes: of which some may have been evictable until now.
        """

    @abstractmethod
    def victim(self) -> Node:
        """The evictable node to evict, of which there is at least one; it leaves the order."""

    def victims(self, count: int) -> Iterable[Node]:
        """So many victims; each is evicted before the next is chosen.

        Args:
            count: how many, at most the evictable nodes.
        """
        for _ in range(count):
            yield self.victim()

    def close_session(self, session: int) -> None:  # noqa: B027  # most orders know no sessions
        """No request of the session will come.

        Args:
            session: its number.
        """


def oracle_of(order: EvictionOrder) -> ForeseesChains | None:
    """The order, if it reads the future."""
    return order if isinstance(order, ForeseesChains) else None
