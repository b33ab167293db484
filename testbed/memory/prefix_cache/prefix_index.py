"""Which block holds which content: full blocks of prompts, found by the chain of contents that
leads to them.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from testbed.core.errors import InputError

Content: TypeAlias = int | tuple[int, ...] | tuple[tuple[int], int]
OnEqual: TypeAlias = Callable[["Node", int], None]
HOLE = -1


def block_contents(
    ids: Sequence[int], tokens_per_id: int, num_tokens: int, block_size: int
) -> Sequence[Content]:
    """What the full blocks of num_tokens tokens store: several ids, one id, or one of the equal
    parts of an id.
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
        f"block_size {block_size} does not go with a trace whose ids name {tokens_per_id} tokens "
        f"each: one must divide "
        "the other"
    )


class Node:
    """A full block of prompt content behind its predecessor `parent`.

    block is HOLE where the content was dropped while later blocks of it are still there. parked:
    the block's reference count is 0, so it may be evicted. children: blocks indexed right behind
    it. code: the chained hash of its content and all before it, by which eviction orders recognize
    what was evicted. hits, ticket and memo are for these orders; memo is None until one sets it.
    """

    __slots__ = (
        "block",
        "children",
        "code",
        "content",
        "depth",
        "hits",
        "memo",
        "parent",
        "parked",
        "ticket",
    )

    def __init__(self, parent: "Node | None", content: Content, code: int, block: int) -> None:
        self.parent = parent
        self.content = content
        self.code = code
        self.block = block
        self.depth: int = -1 if parent is None else parent.depth + 1
        self.parked = False
        self.children = 0
        self.hits = 0
        self.ticket = -1
        self.memo: Any = None


class PrefixIndex:
    """Chains of contents to blocks: each node is known by its predecessor and its content.

    Contents themselves are compared on a hit, not only their hashes, so a collision costs time and
    never shares. A block whose predecessor is missing cannot be found until that one is back.
    num_kept counts the contents of other memories, which keep their nodes in the index without a
    block.
    """

    def __init__(self, num_blocks: int) -> None:
        self.hash_of: Callable[[tuple[int, Content]], int] = hash
        self.root = Node(None, 0, 0, 0)
        self.holder: list[Node | None] = [None] * num_blocks
        self.num_kept = 0
        self._nodes: dict[tuple[Node, Content], Node] = {}

    def match(self, contents: Iterable[Content]) -> list[Node]:
        """The nodes of the leading contents that are there without a gap. Changes nothing."""
        found: list[Node] = []
        node, nodes = self.root, self._nodes
        for content in contents:
            child = nodes.get((node, content))
            if child is None or child.block == HOLE:
                break
            found.append(child)
            node = child
        return found

    def child(self, node: Node, content: Content) -> Node | None:
        """The node of `content` right behind `node`, with a block or as a hole."""
        return self._nodes.get((node, content))

    def keep(self, node: Node) -> None:
        """The node stays while another memory has its content."""
        self.num_kept += 1
        node.children += 1

    def dereference(self, node: Node) -> None:
        """One of these memories has its content no longer."""
        self.num_kept -= 1
        node.children -= 1
        self.prune(node)

    def chain(self, contents: Iterable[Content]) -> list[int]:
        code, codes = self.root.code, []
        for content in contents:
            code = self.hash_of((code, content))
            codes.append(code)
        return codes

    def insert(
        self, node: Node, contents: Iterable[Content], blocks: Iterable[int], equal: OnEqual
    ) -> Node:
        """`blocks` hold `contents` one after another behind `node`; returns the last node.

        Where a content is indexed already with another block, or as a hole, equal(its node, block)
        says what to do.
        """
        nodes, holder, hash_of = self._nodes, self.holder, self.hash_of
        for content, block in zip(contents, blocks, strict=False):
            child = nodes.get((node, content))
            if child is None:
                code = hash_of((node.code, content))
                child = nodes[node, content] = holder[block] = Node(node, content, code, block)
                node.children += 1
            elif child.block != block:
                equal(child, block)
            node = child
        return node

    def fill(self, node: Node, block: int) -> None:
        if node.block != HOLE:
            self.holder[node.block] = None
        node.block = block
        self.holder[block] = node

    def drop(self, dropped: Iterable[Node]) -> list[int]:
        """The blocks of these nodes no longer hold their content; returns the blocks."""
        holder, blocks = self.holder, []
        for node in dropped:
            blocks.append(node.block)
            holder[node.block] = None
            node.block = HOLE
            node.parked = False
            if node.children:
                node.hits, node.memo = 0, None
            self.prune(node)
        return blocks

    def prune(self, node: Node) -> None:
        """Forget a hole with nothing behind it, and whatever it leaves so."""
        while node.block == HOLE and not node.children:
            assert node.parent is not None
            del self._nodes[node.parent, node.content]
            node = node.parent
            node.children -= 1

    def check(self) -> None:
        """Raise AssertionError where blocks and nodes do not belong to each other."""
        nodes = [self.root, *self._nodes.values()]
        assert {*filter(None, self.holder)} == {node for node in nodes[1:] if node.block != HOLE}, (
            "holders are lost"
        )
        assert sum(node.children for node in nodes) == len(self._nodes) + self.num_kept, (
            "children are miscounted"
        )
        for (parent, content), node in self._nodes.items():
            assert (node.parent, node.content) == (parent, content), (
                f"block {node.block} is not found by its content"
            )
            assert node.block == HOLE or self.holder[node.block] is node, "blocks and nodes differ"
            assert node.children or node.block != HOLE, "a hole with nothing behind it"
