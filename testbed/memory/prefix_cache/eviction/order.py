"""The plug-in API for eviction orders."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar

from testbed.core.errors import UnsupportedError
from testbed.memory.prefix_cache.prefix_index import Node


class EvictionOrder(ABC):
    """Chooses among parked nodes: cached blocks whose reference count is 0.

    An order sees that nodes are parked and hit, and names victims; it has no clock and no random
    numbers. What it must remember of a node it may keep in node.memo, which is None whenever the
    node is new to the cache. node.hits counts the prompts that have found the node; node.parked
    says whether it may be a victim. session is that of the sequence whose slots come back, when
    nodes are parked.
    """

    reads_future: ClassVar[bool] = False
    session: int | None = None

    @abstractmethod
    def park(self, nodes: Sequence[Node]) -> None:
        """These nodes' reference counts are now 0; the end of a sequence comes before its
        beginning.
        """

    @abstractmethod
    def hit(self, nodes: Sequence[Node]) -> None:
        """A prompt has found these nodes, of which some may be parked until now, and holds them."""

    @abstractmethod
    def victim(self) -> Node:
        """The parked node to evict, of which there is at least one; it leaves the order."""

    def victims(self, count: int) -> Iterable[Node]:
        """So many victims; each is evicted before the next is chosen."""
        for _ in range(count):
            yield self.victim()

    def close_session(self, session: int) -> None:  # noqa: B027  # most orders know no sessions
        """No request of the session will come."""

    def foresee(self, prompts: Iterable[Sequence[int]]) -> None:
        """The future, for an order that declares reads_future: the hash chain of every prompt, in
        order of look-up.
        """
        raise UnsupportedError(f"{type(self).__name__} does not read the future")

    def requested(self, chain: Sequence[int]) -> None:
        """The next prompt of the future is looked up now."""
        raise UnsupportedError(f"{type(self).__name__} does not read the future")
