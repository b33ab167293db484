"""Whole sessions: those that have ended first, then the one that has been idle longest."""

from collections import OrderedDict
from collections.abc import Sequence

from testbed.memory.prefix_cache.eviction.order import EvictionOrder
from testbed.memory.prefix_cache.prefix_index import Node


class BySession(EvictionOrder):
    """A node belongs to the session that released it last; a prompt of no session is a session of
    its own.

    Within a session what became evictable first goes first. A session is idle since its last
    request gave its slots back.
    """

    def __init__(self) -> None:
        self._sessions: OrderedDict[int | Node, dict[Node, None]] = (
            OrderedDict()
        )  # the first is evicted first

    def columns_read(self) -> tuple[str, ...]:
        """See ReadsColumns."""
        return ("session",)

    def add(self, nodes: Sequence[Node]) -> None:
        if nodes:
            session = nodes[0] if self.session is None else self.session
            for node in nodes:
                node.memo = session
            self._sessions.setdefault(session, {}).update(dict.fromkeys(nodes))
            self._sessions.move_to_end(session)

    def hit(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if node.evictable:
                self._leave(node)

    def victim(self) -> Node:
        node = next(iter(next(iter(self._sessions.values()))))
        self._leave(node)
        return node

    def close_session(self, session: int) -> None:
        if session in self._sessions:
            self._sessions.move_to_end(session, last=False)

    def _leave(self, node: Node) -> None:
        left = self._sessions[node.memo]
        del left[node]
        if not left:
            del self._sessions[node.memo]
