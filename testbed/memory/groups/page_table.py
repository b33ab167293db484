"""The pages of one sequence in every column, those that no sequence holds, and which pages have which content."""

from collections.abc import Container, Iterable, Iterator
from collections.abc import Sequence as Row
from typing import NamedTuple

from testbed.core.sequence import Sequence
from testbed.core.slots import Extent, GroupTable, NonSequenceSlots, ceil_div
from testbed.memory.groups.page_rules import Column, PagePool, Pages
from testbed.memory.policy import UNBOUNDED_LEN
from testbed.memory.prefix_cache.prefix_index import Content

PageOf = tuple[int, int]  # column, and first unit
NONE = -1


class Hit(NamedTuple):
    """What a sequence begins with: num_tokens tokens of the cache, by column in `pages` behind `dropped` blocks."""

    num_tokens: int
    pages: Pages
    dropped: list[int]


class PageTable:
    """The pages of one sequence by column, from block `dropped[c]` on; num_cached: tokens found in the cache."""

    __slots__ = ("block_size", "columns", "dropped", "num_cached", "pages", "seq")

    def __init__(self, seq: Sequence, pool: PagePool, hit: Hit, new: Pages) -> None:
        self.seq = seq
        self.columns = pool.columns
        self.block_size = pool.block_size
        self.num_cached = hit.num_tokens
        self.dropped = list(hit.dropped)
        self.pages = [found + taken for found, taken in zip(hit.pages, new, strict=True)]

    def group_tables(self, pool: PagePool) -> list[GroupTable]:
        return [
            GroupTable(
                one.group,
                [Extent(page, pool.used_units(i)) for page in self.pages[i]],
                self.dropped[i] * self.block_size,
                one.width,
            )
            for i, one in enumerate(self.columns)
        ]

    def unread(self, column: int) -> list[int]:
        """Pages that no token of the next chunk or step reads: it begins at token num_slots, which reads itself too."""
        first = first_read(self.columns[column], self.seq.num_slots, self.block_size)
        return self.pages[column][: max(first - self.dropped[column], 0)]

    def drop(self, column: int, count: int) -> None:
        del self.pages[column][:count]
        self.dropped[column] += count

    def steps_to_return(self) -> int:
        """How many steps in a row leave it the pages that it has."""
        ends = zip(self.dropped, self.columns, strict=True)
        kept = [(dropped + 1) * self.block_size + one.window for dropped, one in ends if one.window]
        return min(kept, default=UNBOUNDED_LEN) - self.seq.num_slots - 1

    def live(self, column: int) -> int:
        """Units of a column in which a token or a state is stored."""
        one = self.columns[column]
        if one.state:
            return one.state * len(self.pages[column])
        return (self.seq.num_slots - self.dropped[column] * self.block_size) * one.width

    def check(self) -> None:
        """Raise AssertionError where it lacks a page that it reads, or has one too many."""
        blocks = ceil_div(self.seq.num_slots, self.block_size)
        reading = max(self.seq.num_slots - 1, self.num_cached)
        for i, one in enumerate(self.columns):
            expected = blocks - self.dropped[i] if one.per_block else 1
            assert len(self.pages[i]) == expected, f"{self.seq} has {len(self.pages[i])} pages of column {i}"
            unread = first_read(one, reading, self.block_size)
            assert self.dropped[i] <= unread, f"{self.seq} has given back what it reads, in column {i}"


def first_read(column: Column, token: int, block_size: int) -> int:
    """The first block that a token reads, which also reads itself."""
    return 0 if column.window is None else max(token + 1 - column.window, 0) // block_size


def other_units(pages: PagePool, held: Iterable[PageOf], idle: Iterable[PageOf]) -> NonSequenceSlots:
    """Idle pages are cached; what a whole page has besides held and idle ones is rounding, if one of it is held."""
    used = dict[Extent, list[Extent]]()
    for column, page in held:
        part, whole = Extent(page, pages.used_units(column)), pages.whole(column, page)
        if part != whole:  # else it leaves nothing unused
            used.setdefault(whole, []).append(part)
    cached = dict[Extent, None]()
    for column, page in idle:
        part, whole = Extent(page, pages.used_units(column)), pages.whole(column, page)
        cached[part if whole in used else whole] = None
        used.get(whole, []).append(part)
    rounding = (gap for whole, parts in used.items() for gap in gaps(whole, parts))
    return NonSequenceSlots((), tuple(cached), tuple(rounding))


def gaps(whole: Extent, parts: list[Extent]) -> Iterator[Extent]:
    at = whole.start
    for start, length in [*sorted(parts), Extent(whole.start + whole.length, 0)]:
        if start > at:
            yield Extent(at, start - at)
        at = start + length


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

    def __init__(self, windows: Row[int | None], block_size: int) -> None:
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

    def hits(self, path: Row[GroupNode], unready: Container[int]) -> list[int]:
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
