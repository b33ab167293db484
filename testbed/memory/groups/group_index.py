"""Which pages have which content: full blocks of prompts, found by the chain of contents that leads to them."""

from collections.abc import Container, Iterable, Sequence

from testbed.memory.prefix_cache.prefix_index import Content

NONE = -1


class GroupNode:
    """A full block of content behind `parent`; the page of each column that has it, NONE where it was evicted."""

    __slots__ = ("children", "content", "pages", "parent")

    def __init__(self, parent: "GroupNode | None", content: Content, num_columns: int) -> None:
        self.parent = parent
        self.content = content
        self.pages = [NONE] * num_columns
        self.children = 0


class GroupIndex:
    """Chains of contents to pages, a state's page after its chain. windows: tokens that a column reads; None: all."""

    def __init__(self, windows: Sequence[int | None], block_size: int) -> None:
        self.windows = tuple(windows)
        self.block_size = block_size
        self.root = GroupNode(None, 0, len(self.windows))
        self.holder: dict[int, tuple[GroupNode, int]] = {}  # node and column by page
        self._nodes: dict[tuple[GroupNode, Content], GroupNode] = {}

    def path(self, contents: Iterable[Content]) -> list[GroupNode]:
        """The nodes of the leading contents, as far as all pages that every token reads are there. Changes nothing."""
        path, node = list[GroupNode](), self.root
        whole = [i for i, window in enumerate(self.windows) if window is None]
        for content in contents:
            child = self._nodes.get((node, content))
            if child is None or any(child.pages[i] == NONE for i in whole):
                break
            path.append(child)
            node = child
        return path

    def hits(self, path: Sequence[GroupNode], unready: Container[int]) -> list[int]:
        """After how many blocks, the most first, every group has what the next token reads, `unready` pages aside."""
        found, runs = list[int](), [0] * len(self.windows)
        for num_blocks, node in enumerate(path, 1):
            pages = zip(runs, node.pages, strict=True)
            runs = [0 if page == NONE or page in unready else run + 1 for run, page in pages]
            if all(run >= num_blocks - self.first_read(num_blocks, i) for i, run in enumerate(runs)):
                found.append(num_blocks)
        return found[::-1]

    def first_read(self, num_blocks: int, column: int) -> int:
        """The first block that the token behind so many blocks reads."""
        window = self.windows[column]
        return 0 if window is None else max(num_blocks * self.block_size + 1 - window, 0) // self.block_size

    def child(self, node: GroupNode, content: Content) -> GroupNode:
        """The node of `content` behind `node`, which is made where there is none."""
        found = self._nodes.get((node, content))
        if found is None:
            found = self._nodes[node, content] = GroupNode(node, content, len(self.windows))
            node.children += 1
        return found

    def set_page(self, node: GroupNode, column: int, page: int) -> None:
        """The page has the node's content in this column, in place of any other."""
        self.holder.pop(node.pages[column], None)
        node.pages[column] = page
        self.holder[page] = node, column

    def drop(self, page: int) -> None:
        node, column = self.holder.pop(page)
        node.pages[column] = NONE
        self.prune(node)

    def prune(self, node: GroupNode) -> None:
        """Forget a node with neither pages nor children, and whatever it leaves so."""
        while node.parent is not None and not node.children and all(page == NONE for page in node.pages):
            del self._nodes[node.parent, node.content]
            node = node.parent
            node.children -= 1

    def check(self) -> None:
        nodes = {id(node): node for node in self._nodes.values()}
        found = {page: (node, i) for node in nodes.values() for i, page in enumerate(node.pages) if page != NONE}
        assert found == self.holder, "pages and nodes differ"
        for node in nodes.values():
            assert node.children or any(page != NONE for page in node.pages), "a node with nothing in it or behind it"
