"""An index of contents that keeps blocks of one prompt as one record, until another asks for
them.
"""

from collections.abc import Iterable

from testbed.memory.prefix_cache.hash_chain import Content
from testbed.memory.prefix_cache.prefix_index import TOMBSTONE, Node, OnEqual, PrefixIndex


class Strand(Node):
    """Blocks that one sequence has published at the end of a chain, in place of a node for each:
    `blocks` store `contents`.

    As a node it is the last of them, behind which that sequence goes on. end: the node of the last
    block, once each block has a node.
    """

    __slots__ = ("blocks", "contents", "end")

    def __init__(self, parent: Node, contents: list[Content], blocks: list[int]) -> None:
        super().__init__(parent, contents[-1], 0, blocks[-1])
        self.depth = parent.depth + len(blocks)
        self.contents = contents
        self.blocks = blocks
        self.end: Node | None = None


class StrandIndex(PrefixIndex):
    """A PrefixIndex that puts new contents into strands. Nodes replace a strand as soon as a prompt
    looks for its first content.

    Its pool gives back and evicts whole strands, or ends of them, and expands all others.
    by_end: each strand by its last block. lists: of each block with a node that the pool has put
    into its queue, the list into which it was put last. A listener to cache events follows single
    blocks, so that there are no strands if there is one.
    """

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.by_end: dict[int, Strand] = {}
        self.lists: dict[int, list[int]] = {}
        self._strands: dict[tuple[Node, Content], Strand] = {}

    def insert(
        self, node: Node, contents: Iterable[Content], blocks: Iterable[int], equal: OnEqual
    ) -> Node:
        if isinstance(node, Strand):
            if node.end is None:
                return self._lengthen(node, contents, blocks)
            node = node.end
        return super().insert(node, contents, blocks, equal)

    def expand(self, strand: Strand) -> None:
        """Give each block of the strand a node."""
        if strand.evictable:  # its blocks are in the queue
            self.lists.update(dict.fromkeys(strand.blocks, strand.blocks))
        parent, pairs = self._remove(strand), zip(strand.contents, strand.blocks, strict=True)
        end = strand.end = super()._append(parent, pairs)
        while end is not parent:
            end.evictable = strand.evictable
            assert end.parent is not None, "it is behind the strand's parent"
            end = end.parent

    def shorten(self, strand: Strand, num_blocks: int) -> None:
        """The last num_blocks blocks of the strand no longer hold their content."""
        blocks = strand.blocks
        kept = len(blocks) - num_blocks
        if kept:
            del self.by_end[strand.block], strand.contents[kept:], blocks[kept:]
            strand.block = blocks[-1]
            self.by_end[strand.block] = strand
            return
        parent = self._remove(strand)
        strand.block = TOMBSTONE
        strand.blocks.clear()
        if parent.block == TOMBSTONE:
            self.prune(parent)

    def check(self) -> None:
        super().check()
        assert len(self.by_end) == len(self._strands), "a strand without an end"
        for (parent, content), strand in self._strands.items():
            assert (strand.parent, strand.contents[0]) == (parent, content), "a strand is lost"
            assert len(strand.contents) == len(strand.blocks), "contents and blocks differ"
            assert self.by_end[strand.blocks[-1]] is strand, "a strand with another's end"

    def _append(self, node: Node, pairs: Iterable[tuple[Content, int]]) -> Node:
        if self.on_event is not None:
            return super()._append(node, pairs)
        contents, blocks = map(list, zip(*pairs, strict=True))
        strand = self._strands[node, contents[0]] = Strand(node, contents, blocks)
        node.children += 1
        self.by_end[strand.block] = strand
        return strand

    def _lengthen(
        self, strand: Strand, contents: Iterable[Content], blocks: Iterable[int]
    ) -> Strand:
        """Index contents and their blocks behind those of the strand."""
        own = strand.blocks
        strand.depth -= len(own)
        strand.contents += contents
        own += blocks
        strand.depth += len(own)
        del self.by_end[strand.block]
        strand.block = own[-1]
        self.by_end[strand.block] = strand
        return strand

    def _remove(self, strand: Strand) -> Node:
        """The strand leaves the index; its parent."""
        parent = strand.parent
        assert parent is not None, "a strand is behind the root"
        del self._strands[parent, strand.contents[0]], self.by_end[strand.block]
        parent.children -= 1
        return parent

    def _unfolded(self, node: Node, content: Content) -> Node | None:
        strand = self._strands.get((node, content))
        if strand is None:
            return None
        self.expand(strand)
        return self._nodes[node, content]

    def _num_children(self) -> int:
        return super()._num_children() + len(self._strands)
