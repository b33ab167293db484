"""Which block holds which content: full blocks of prompts, found by the chain of contents that leads to them."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from testbed.core.errors import InputError

Content: TypeAlias = int | tuple[int, ...] | tuple[tuple[int], int]
HashOf: TypeAlias = Callable[[tuple[int, Content]], int]
OnEqual: TypeAlias = Callable[["Node", int], None]
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

    def __init__(
        self, parent: "Node | None", content: Content, code: int, block: int, rival: "Node | None" = None
    ) -> None:
        self.parent = parent
        self.content = content
        self.code = code
        self.block = block
        self.depth: int = -1 if parent is None else parent.depth + 1
        self.parked = False
        self.children = 0
        self.rival = rival
        self.hits = 0
        self.ticket = -1
        self.memo: Any = None


class PrefixIndex:
    """Chained hashes of contents to blocks.

    Each hash covers the predecessor's, and on a hit predecessor and content themselves are compared, so a collision
    costs time and never shares. A block whose predecessor is missing cannot be found until that one is back.
    """

    def __init__(self, num_blocks: int, hash_of: HashOf = hash) -> None:
        self.hash_of = hash_of
        self.root = Node(None, 0, 0, 0)
        self.holder: list[Node | None] = [None] * num_blocks
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

    def insert(self, node: Node, contents: Iterable[Content], blocks: Iterable[int], equal: OnEqual) -> Node:
        """`blocks` hold `contents` one after another behind `node`; returns the last node.

        Where a content is indexed already with another block, or as a hole, equal(its node, block) says what to do.
        """
        nodes, holder, hash_of = self._nodes, self.holder, self.hash_of
        for content, block in zip(contents, blocks, strict=False):
            code = hash_of((node.code, content))
            first = child = nodes.get(code)
            while child is not None and (child.parent is not node or child.content != content):
                child = child.rival
            if child is None:
                child = nodes[code] = holder[block] = Node(node, content, code, block, first)
                node.children += 1
            elif child.block != block:
                equal(child, block)
            node = child
        return node

    def fill(self, node: Node, block: int) -> None:
        """`block` holds the content of `node` from now on."""
        if node.block != HOLE:
            self.holder[node.block] = None
        node.block = block
        self.holder[block] = node

    def drop(self, dropped: Iterable[Node]) -> list[int]:
        """The blocks of these nodes no longer hold their content; returns the blocks."""
        nodes, holder, blocks = self._nodes, self.holder, []
        for node in dropped:
            blocks.append(node.block)
            holder[node.block] = None
            node.block = HOLE
            node.parked = False
            if node.children:
                node.hits, node.memo = 0, None
            while node.block == HOLE and not node.children:  # a hole with nothing behind it, and whatever it leaves so
                other = nodes.pop(node.code)
                if other is not node or node.rival is not None:
                    nodes[node.code] = without(other, node)
                assert node.parent is not None
                node = node.parent
                node.children -= 1
        return blocks

    def check(self) -> None:
        """Raise AssertionError where blocks and nodes do not belong to each other."""
        nodes = list(self._all())
        children = Counter(node.parent for node in nodes)
        full = {node.block: node for node in nodes if node.block != HOLE}
        assert [full.get(block) for block in range(len(self.holder))] == self.holder, "blocks and nodes differ"
        for node in nodes:
            assert node.parent is not None
            assert self.insert(node.parent, [node.content], [node.block], _lost) is node
            assert node.children == children[node], "children are miscounted"
            assert node.children or node.block != HOLE, "a hole with nothing behind it"

    def _all(self) -> Iterable[Node]:
        for node in self._nodes.values():
            rival: Node | None = node
            while rival is not None:
                yield rival
                rival = rival.rival


def _lost(node: Node, block: int) -> None:
    raise AssertionError(f"block {block} cannot be found by its content")


def without(first: Node, node: Node) -> Node:
    """The chain of rivals from `first` on, of which `node` is not the only one, without `node`; its first."""
    if first is node:
        assert node.rival is not None
        return node.rival
    other = first
    while other.rival is not node:
        assert other.rival is not None
        other = other.rival
    other.rival = node.rival
    return first
