"""Adaptive replacement (Megiddo and Modha, FAST 2003)."""

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from testbed.memory.prefix_cache.eviction.order import EvictionOrder
from testbed.memory.prefix_cache.prefix_index import Node

Queue: TypeAlias = OrderedDict[Node, None]
Ghosts: TypeAlias = OrderedDict[int, None]


class Arc(EvictionOrder):
    """Two LRU queues, of nodes found once and more often, whose balance follows hits on what each
    has evicted.

    `target` is the wanted length of `recent`. A miss on a ghost, which names an evicted node by its
    chained hash, moves the target before the victim of that miss is chosen (a collision of hashes
    moves only the target); the victims after `missed` make room for its codes one by one. Blocks of
    one-block prompts are the paper's pages, and its size is the most nodes that the queues have had
    together. A held node, which was found and so is `frequent`, goes to the end of that queue when
    it is evictable again; one that a transfer needs keeps its place.
    """

    def __init__(self) -> None:
        self.target = 0.0
        self.size = 0
        self._recent: Queue = OrderedDict()
        self._frequent: Queue = OrderedDict()
        self._recent_ghosts: Ghosts = OrderedDict()
        self._frequent_ghosts: Ghosts = OrderedDict()
        self._missed: deque[int] = deque()
        self._returning: Ghosts = OrderedDict()  # ghosts whose nodes are not evictable yet

    def add(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if node in self._frequent:
                self._frequent.move_to_end(node)
            elif node not in self._recent:
                self._enter(node)
        self.size = max(self.size, len(self._recent) + len(self._frequent))

    def hit(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if node in self._recent:
                del self._recent[node]
                self._frequent[node] = None
            elif node in self._frequent:
                self._frequent.move_to_end(node)

    def missed(self, codes: Iterable[int]) -> None:
        """See FollowsMisses."""
        self._missed = deque(codes)

    def victim(self) -> Node:
        code = self._missed.popleft() if self._missed else None
        was_frequent = code in self._frequent_ghosts
        ghosts: Ghosts | None = self._recent_ghosts
        if code is None or not self._adapt(code):
            ghosts = self._trimmed_ghosts()
        length = len(self._recent)
        if length > self.target or (was_frequent and length == self.target):
            return self._oldest([(self._recent, ghosts), (self._frequent, self._frequent_ghosts)])
        return self._oldest([(self._frequent, self._frequent_ghosts), (self._recent, ghosts)])

    def _oldest(self, queues: Iterable[tuple[Queue, Ghosts | None]]) -> Node:
        """The first evictable node, which leaves its queue and becomes the newest of its ghosts."""
        for queue, ghosts in queues:
            node = next((node for node in queue if node.evictable), None)
            if node is not None:
                del queue[node]
                if ghosts is not None:
                    ghosts[node.code] = None
                return node
        raise IndexError("no node is evictable")

    def _enter(self, node: Node) -> None:
        """A node that is new to the cache, unless a ghost says that it left too early."""
        returns = self._adapt(node.code)
        self._returning.pop(node.code, None)
        queue = self._frequent if returns or node.hits else self._recent
        queue[node] = None

    def _adapt(self, code: int) -> bool:
        """Move the target if `code` is a ghost, which it is no longer; whether it was one."""
        recent, frequent = self._recent_ghosts, self._frequent_ghosts
        if code in recent:
            self.target = min(self.size, self.target + max(1.0, len(frequent) / len(recent)))
            del recent[code]
        elif code in frequent:
            self.target = max(0.0, self.target - max(1.0, len(recent) / len(frequent)))
            del frequent[code]
        else:
            return code in self._returning
        self._returning[code] = None
        if len(self._returning) > self.size:
            self._returning.popitem(last=False)
        return True

    def _trimmed_ghosts(self) -> Ghosts | None:
        """The ghosts of `recent`, after the oldest ghost has made room for one more; None if
        that queue alone is as long as the cache: its victim leaves no ghost.
        """
        recent, size = self._recent_ghosts, self.size
        num_recent = len(self._recent) + len(recent)
        num_frequent = len(self._frequent) + len(self._frequent_ghosts)
        if num_recent >= size:
            if not recent:
                return None
            recent.popitem(last=False)
        elif num_recent + num_frequent >= 2 * size and self._frequent_ghosts:
            self._frequent_ghosts.popitem(last=False)
        return recent
