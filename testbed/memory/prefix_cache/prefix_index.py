"""The block that holds each content: full blocks of prompts, found by the chain of contents that
leads to them. hash_chain.py defines a block's content and its chained hash.
"""

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, TypeAlias

from testbed.memory.prefix_cache.hash_chain import Content, HashOf, chained, hash_chain

OnEqual: TypeAlias = Callable[["Node", int], None]
OnCacheEvent: TypeAlias = Callable[[list[int], bool], None]  # chained hashes; True: findable now
Key: TypeAlias = tuple[int, Content]
TOMBSTONE = -1


class Node:
    """A full block of prompt content behind its predecessor `parent`.

    block is TOMBSTONE if the content was dropped while later blocks of it are still there, or
    is on its way here.
    evictable: the block's reference count is 0, so it may be evicted. children: blocks indexed
    right behind it. code: the chained hash of its content and all before it, by which eviction
    orders recognize what was evicted. hits, ticket and memo are for these orders; memo is None
    until one sets it.
    """

    __slots__ = (
        "block",
        "children",
        "code",
        "content",
        "depth",
        "evictable",
        "hits",
        "memo",
        "parent",
        "ticket",
    )

    def __init__(self, parent: "Node | None", content: Content, code: int, block: int) -> None:
        self.parent = parent
        self.content = content
        self.code = code
        self.block = block
        self.depth: int = -1 if parent is None else parent.depth + 1
        self.evictable = False
        self.children = 0
        self.hits = 0
        self.ticket = -1
        self.memo: Any = None

    @property
    def key(self) -> Key:
        """The name of the content outside this index: its chained hash, and itself. Two contents
        would be taken for one only if they are equal and those before them have equal hashes.
        """
        return self.code, self.content


class PrefixIndex:
    """Chains of contents to blocks: each node is known by its predecessor and its content.

    Contents themselves are compared on a hit, not only their hashes, so a collision costs time and
    never shares. A block whose predecessor is missing cannot be found until that one is back.
    num_kept counts the contents that other memories have or send, whose nodes are in the index
    without a block. on_event: the callback, if there is one, for contents that have blocks now, or
    none any more.
    """

    def __init__(self, num_blocks: int) -> None:
        self.hash_of: HashOf = hash
        self.root = Node(parent=None, content=0, code=0, block=0)
        self.holder: list[Node | None] = [None] * num_blocks
        self.num_kept = 0
        self.on_event: OnCacheEvent | None = None
        self._nodes: dict[tuple[Node, Content], Node] = {}

    def match(self, contents: Iterable[Content]) -> list[Node]:
        """The nodes of the leading contents that are there without a gap. Changes nothing that can
        be found.
        """
        matched: list[Node] = []
        node, nodes = self.root, self._nodes
        for content in contents:
            child = nodes.get((node, content)) or self._unfolded(node, content)
            if child is None or child.block == TOMBSTONE:
                break
            matched.append(child)
            node = child
        return matched

    def child(self, node: Node, content: Content) -> Node | None:
        """The node of `content` right behind `node`, with a block or as a tombstone."""
        return self._nodes.get((node, content))

    def child_or_new(self, node: Node, content: Content) -> Node:
        """The child, or a new node, which is not in the index before `keep`."""
        child = self._nodes.get((node, content))
        if child is None:
            child = Node(node, content, chained(node.code, content, self.hash_of), TOMBSTONE)
        return child

    def keep(self, node: Node) -> None:
        """The node, which may be new, stays while another memory has its content or sends it."""
        self.num_kept += 1
        node.children += 1
        while node.parent is not None and (node.parent, node.content) not in self._nodes:
            self._nodes[node.parent, node.content] = node
            node = node.parent
            node.children += 1

    def dereference(self, node: Node) -> None:
        """One of these memories has its content no longer, or has sent it."""
        self.num_kept -= 1
        node.children -= 1
        self.prune(node)

    def chain(self, contents: Iterable[Content]) -> list[int]:
        """The chained hash of every content."""
        return list(hash_chain(self.root.code, contents, self.hash_of))

    def insert(
        self, node: Node, contents: Iterable[Content], blocks: Iterable[int], equal: OnEqual
    ) -> Node:
        """`blocks` hold `contents` one after another behind `node`; returns the last node.

        If a content is indexed already with another block, or as a tombstone, equal(its node,
        block) decides.
        """
        nodes, pairs = self._nodes, zip(contents, blocks, strict=False)
        for content, block in pairs:
            child = None
            if node.children:
                child = nodes.get((node, content)) or self._unfolded(node, content)
            if child is None:
                return self._append(node, chain([(content, block)], pairs))
            if child.block != block:
                equal(child, block)
            node = child
        return node

    def _append(self, node: Node, pairs: Iterable[tuple[Content, int]]) -> Node:
        """Index contents and their blocks one after another behind `node`, of which it has not the
        first; returns the last node.
        """
        nodes, holder, hash_of, on_event = self._nodes, self.holder, self.hash_of, self.on_event
        codes: list[int] = []
        for content, block in pairs:
            code = hash_of((node.code, content))  # as `chained`
            child = nodes[node, content] = holder[block] = Node(node, content, code, block)
            node.children += 1
            if on_event is not None:
                codes.append(code)
            node = child
        if on_event is not None:
            on_event(codes, True)
        return node

    def _unfolded(self, node: Node, content: Content) -> Node | None:
        """The node of `content` behind `node`, which has none yet, if a subclass stores the content
        in another way.
        """
        return None

    def fill(self, node: Node, block: int) -> None:
        if node.block != TOMBSTONE:
            self.holder[node.block] = None
        elif self.on_event is not None:
            self.on_event([node.code], True)
        node.block = block
        self.holder[block] = node

    def drop(self, dropped: Iterable[Node]) -> list[int]:
        """The blocks of these nodes no longer hold their content; returns the blocks."""
        holder, nodes, on_event = self.holder, self._nodes, self.on_event
        blocks, codes = list[int](), list[int]()
        for node in dropped:
            block, parent = node.block, node.parent
            blocks.append(block)
            holder[block] = None
            node.block = TOMBSTONE
            node.evictable = False
            if on_event is not None:
                codes.append(node.code)
            if node.children:
                node.hits, node.memo = 0, None
                continue
            assert parent is not None, "the root has no block"
            del nodes[parent, node.content]
            parent.children -= 1
            if parent.block == TOMBSTONE:
                self.prune(parent)
        if on_event is not None and codes:
            on_event(codes, False)
        return blocks

    def prune(self, node: Node) -> None:
        """Forget a tombstone with nothing behind it, and whatever it leaves so."""
        while node.block == TOMBSTONE and not node.children:
            assert node.parent is not None
            del self._nodes[node.parent, node.content]
            node = node.parent
            node.children -= 1

    def check(self) -> None:
        """Raise AssertionError if blocks and nodes do not belong to each other."""
        nodes = [self.root, *self._nodes.values()]
        assert {*filter(None, self.holder)} == {
            node for node in nodes[1:] if node.block != TOMBSTONE
        }, "holders are lost"
        children = sum(node.children for node in nodes)
        assert children == self._num_children(), "children are miscounted"
        for (parent, content), node in self._nodes.items():
            assert (node.parent, node.content) == (parent, content), (
                f"block {node.block} is not found by its content"
            )
            assert node.block == TOMBSTONE or self.holder[node.block] is node, (
                "blocks and nodes differ"
            )
            assert node.children or node.block != TOMBSTONE, "a tombstone with nothing behind it"

    def _num_children(self) -> int:
        """Of all nodes together."""
        return len(self._nodes) + self.num_kept
