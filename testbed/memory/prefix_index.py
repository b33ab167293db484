"""Which block holds which content: full blocks of prompts, found by the chain of contents that leads to them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from testbed.core.errors import InputError

Content: TypeAlias = int | tuple[int, ...]
HashOf: TypeAlias = Callable[[tuple[int, Content]], int]
HOLE = -1


def block_contents(ids: Sequence[int], tokens_per_id: int, num_tokens: int, block_size: int) -> Sequence[Content]:
    """What the full blocks among a prompt's first num_tokens tokens store; each id names tokens_per_id tokens.

    A block is several ids, one id, or one of the equal parts of an id.
    """
    full = num_tokens // block_size
    if block_size == tokens_per_id:
        return ids[:full]
    if block_size % tokens_per_id == 0:
        width = block_size // tokens_per_id
        return [tuple(ids[i * width : (i + 1) * width]) for i in range(full)]
    if tokens_per_id % block_size == 0:
        parts = tokens_per_id // block_size
        return [ids[i // parts] * parts + i % parts for i in range(full)]
    raise InputError(
        f"block_size {block_size} does not go with a trace whose ids name {tokens_per_id} tokens each: one must divide "
        "the other"
    )


class Node:
    """A full block of prompt content behind its predecessor `parent`.

    block is HOLE where the content was dropped while later blocks of it are still there. parked: nobody holds the
    block, so it may be evicted. children: blocks indexed right behind it. rival: the next node with the same hash.
    hits, ticket and memo are for eviction orders; memo is None until an order sets it.
    """

    __slots__ = ("block", "children", "code", "content", "depth", "hits", "memo", "parent", "parked", "rival", "ticket")

    def __init__(self, parent: "Node | None", content: Content, code: int, block: int, depth: int) -> None:
        self.parent = parent
        self.content = content
        self.code = code
        self.block = block
        self.depth = depth
        self.parked = False
        self.children = 0
        self.rival: Node | None = None
        self.hits = 0
        self.ticket = -1
        self.memo: Any = None


class PrefixIndex:
    """Chained hashes of contents to blocks.

    Each hash covers the predecessor's, and on a hit predecessor and content themselves are compared, so a collision
    costs time and never shares. A block whose predecessor is missing cannot be found until that one is back.
    """

    def __init__(self, hash_of: HashOf = hash) -> None:
        self.hash_of = hash_of
        self.root = Node(None, 0, 0, 0, -1)
        self.holder: dict[int, Node] = {}
        self._nodes: dict[int, Node] = {}

    def match(self, contents: Iterable[Content]) -> list[Node]:
        """The nodes of the leading contents that are there without a gap. Changes nothing."""
        found: list[Node] = []
        node, nodes, hash_of = self.root, self._nodes, self.hash_of
        for content in contents:
            child = nodes.get(hash_of((node.code, content)))
            while child is not None and (child.parent is not node or child.content != content):
                child = child.rival
            if child is None or child.block == HOLE:
                break
            found.append(child)
            node = child
        return found

    def chain(self, contents: Iterable[Content]) -> list[int]:
        """The chained hash of each content."""
        code, codes = self.root.code, []
        for content in contents:
            code = self.hash_of((code, content))
            codes.append(code)
        return codes

    def child(self, parent: Node, content: Content) -> Node | None:
        """The node of `content` behind `parent`, be it a hole."""
        node = self._nodes.get(self.hash_of((parent.code, content)))
        while node is not None and (node.parent is not parent or node.content != content):
            node = node.rival
        return node

    def add(self, parent: Node, content: Content, block: int) -> Node:
        """`block` holds `content` behind `parent`, where nothing is indexed yet."""
        code = self.hash_of((parent.code, content))
        node = self.holder[block] = Node(parent, content, code, block, parent.depth + 1)
        node.rival = self._nodes.get(code)
        self._nodes[code] = node
        parent.children += 1
        return node

    def fill(self, node: Node, block: int) -> None:
        """`block` holds the content of `node` from now on."""
        if node.block != HOLE:
            del self.holder[node.block]
        node.block = block
        self.holder[block] = node

    def drop(self, node: Node) -> None:
        """The block of `node` no longer holds its content."""
        del self.holder[node.block]
        node.block = HOLE
        node.hits, node.memo = 0, None
        while node.block == HOLE and not node.children and node.parent is not None:
            self._unlink(node)
            node = node.parent
            node.children -= 1

    def check(self) -> None:
        """Raise AssertionError where blocks and nodes do not belong to each other."""
        nodes = list(self._all())
        assert {n.block: n for n in nodes if n.block != HOLE} == self.holder, "blocks and nodes differ"
        for node in nodes:
            assert node.parent is not None
            assert self.child(node.parent, node.content) is node, "a node cannot be found"
            assert node.children == sum(other.parent is node for other in nodes), "children are miscounted"
            assert node.children or node.block != HOLE, "a hole with nothing behind it"

    def _all(self) -> Iterable[Node]:
        for node in self._nodes.values():
            rival: Node | None = node
            while rival is not None:
                yield rival
                rival = rival.rival

    def _unlink(self, node: Node) -> None:
        first = self._nodes[node.code]
        if first is node:
            if node.rival is None:
                del self._nodes[node.code]
            else:
                self._nodes[node.code] = node.rival
            return
        while first.rival is not node:
            assert first.rival is not None
            first = first.rival
        first.rival = node.rival
