"""The pages of one sequence in every column, those that no sequence holds, and which pages have
which content.
"""

from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator
from collections.abc import Sequence as Row
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from testbed.core.sequence import Sequence
from testbed.core.slots import Extent, GroupTable, NonSequenceSlots, ceil_div
from testbed.memory.groups.page_rules import PagePool, Pages
from testbed.memory.policy import UNBOUNDED_LEN
from testbed.memory.prefix_cache.hash_chain import Content
from testbed.memory.prefix_cache.prefix_index import TOMBSTONE, Node, PrefixIndex

PageOf = tuple[int, int]  # column, and first unit
NONE = -1


class Hit(NamedTuple):
    """The pages with which a sequence begins: num_tokens tokens of the cache, by column in `pages`
    behind `dropped` blocks.

    junction: blocks of a longer prefix of which full attention has all pages; 0: there is none.
    """

    num_tokens: int
    pages: Pages
    dropped: list[int]
    junction: int = 0


@dataclass(slots=True)
class PageTable:
    """The pages of one sequence by column, from block `dropped[c]` on.

    apart: of columns whose pages do not follow each other, the block of each page: states at the
    ends of chunks. returns_at: a chunk or step that begins at this token, or behind it, does not
    read all of them. junction: blocks of a prefix that others share, of which no state was kept
    when the sequence was admitted.
    """

    seq: Sequence
    pool: PagePool
    dropped: list[int]
    pages: Pages
    apart: dict[int, list[int]] = field(default_factory=dict)
    junction: int = 0
    returns_at: int = field(init=False)

    def __post_init__(self) -> None:
        self._find_next_return()

    def group_tables(self) -> list[GroupTable]:
        tables: list[GroupTable] = []
        for column, pages, dropped in zip(self.pool.columns, self.pages, self.dropped, strict=True):
            extents = [Extent(page, column.units) for page in pages]
            first = dropped * self.pool.block_size
            tables.append(GroupTable(column.group, extents, first, column.width))
        return tables

    def unread(self, column: int) -> list[int]:
        """Pages that are given back when the next chunk or step is granted: no token of it reads
        them. It begins at token num_slots, which reads itself too.
        """
        return self._unread_from(column, self.seq.num_slots)

    def gives_back(self) -> bool:
        """True if the next chunk or step gives pages back."""
        return self.seq.num_slots >= self.returns_at

    def give_back(self, column: int) -> list[int]:
        """The `unread` pages, which it has no more."""
        pages = self.unread(column)
        del self.pages[column][: len(pages)]
        if column in self.apart:
            del self.apart[column][: len(pages)]
        else:
            self.dropped[column] += len(pages)
        self._find_next_return()
        return pages

    def take_apart(self, column: int, num_tokens: int, pages: list[int]) -> None:
        """The state behind num_tokens tokens has the last of these pages, one that is exported
        before it the other.
        """
        last = ceil_div(num_tokens, self.pool.block_size)
        self.apart[column] += range(last - len(pages), last)
        self.pages[column] += pages
        self._find_next_return()

    def page_of(self, column: int, block: int) -> int:
        """The page of a block in a column; NONE: it has none."""
        pages = self.pages[column]
        if column in self.apart:
            blocks = self.apart[column]
            return pages[blocks.index(block)] if block in blocks else NONE
        place = block - self.dropped[column]
        return pages[place] if place >= 0 else NONE

    def num_lacking(self, num_tokens: int) -> int:
        """So many blocks get pages when it has num_tokens slots."""
        column = self.pool.growing
        if column is None:
            return 0
        num_blocks = self.dropped[column] + len(self.pages[column])
        return ceil_div(num_tokens, self.pool.block_size) - num_blocks

    def blocks_left(self) -> int:
        """So many leading blocks have a page that is given back with the next chunk or step, or
        was.
        """
        return max(self._end_of(i, len(self.unread(i))) for i in range(len(self.dropped)))

    def _end_of(self, column: int, num_pages: int) -> int:
        if column not in self.apart:
            return self.dropped[column] + num_pages
        return self.apart[column][num_pages - 1] + 1 if num_pages else 0

    def granted(self, first: int) -> None:
        """The newest chunk or step begins at token `first`."""

    def begin_plan(self) -> None:
        """The next plan is made: what the plan before the last has read has run."""

    def steps_to_return(self) -> int:
        """The number of steps in a row in which it keeps its pages."""
        return self.returns_at - self.seq.num_slots

    def _find_next_return(self) -> None:
        kept = [
            (self._first_block(i) + 1) * self.pool.block_size + (self.pool.columns[i].window or 0)
            for i in self.pool.windowed
        ]
        self.returns_at = min(kept, default=UNBOUNDED_LEN + 1) - 1

    def _unread_from(self, column: int, token: int) -> list[int]:
        first = self.pool.first_read(column, token)
        if column in self.apart:
            return self.pages[column][: bisect_left(self.apart[column], first)]
        return self.pages[column][: max(first - self.dropped[column], 0)]

    def _first_block(self, column: int) -> int:
        blocks = self.apart.get(column)
        return self.dropped[column] if not blocks else blocks[0]


@dataclass(slots=True)
class RunningPageTable(PageTable):
    """Keeps what the newest chunk or step reads too, which may still run when the next is planned:
    of vLLM's releases that free late (`allocate_slots` goes by the tokens whose results are in).

    first: the token that it begins at, of a sequence that the last plan has left out its next one.
    is_in_last: the last plan has it.
    """

    first: int = 0
    is_in_last: bool = False

    def unread(self, column: int) -> list[int]:
        return self._unread_from(column, self.first)

    def gives_back(self) -> bool:
        return self.first >= self.returns_at

    def granted(self, first: int) -> None:
        self.first = first
        self.is_in_last = True

    def begin_plan(self) -> None:
        if not self.is_in_last:
            self.first = self.seq.num_slots
        self.is_in_last = False

    def steps_to_return(self) -> int:
        if self.gives_back():
            return 0
        # super() does not work in a dataclass with slots, which is another class than this one.
        return max(1, PageTable.steps_to_return(self) + 1)


def other_units(pool: PagePool, held: Iterable[PageOf]) -> NonSequenceSlots:
    """Idle pages are cached. The rest of a padded page is rounding if one of its pages is held."""
    used, cached = dict[Extent, list[Extent]](), dict[Extent, None]()
    for column, page in held:
        part = Extent(page, pool.columns[column].units)
        used.setdefault(pool.padded_extent(column, page), []).append(part)
    blank = set[int]().union(*pool.blank)
    idle = chain.from_iterable(queue.items() for queue in pool.idle)
    for page, column in ((page, column) for page, column in idle if page not in blank):
        part, padded = Extent(page, pool.columns[column].units), pool.padded_extent(column, page)
        cached[part if padded in used else padded] = None
        used.get(padded, []).append(part)
    rounding = (gap for padded, parts in used.items() for gap in gaps(padded, parts))
    return NonSequenceSlots((), tuple(cached), tuple(rounding))


def gaps(whole: Extent, parts: list[Extent]) -> Iterator[Extent]:
    """Slots of the whole extent that are in none of its parts."""
    covered_to = whole.start
    for start, length in [*sorted(parts), Extent(whole.start + whole.length, 0)]:
        if start > covered_to:
            yield Extent(covered_to, start - covered_to)
        covered_to = start + length


class GroupIndex(PrefixIndex):
    """Chains of contents to pages of a pool, a state's page after its chain.

    The memo of a node has the page of each column that has its content, NONE if that was
    evicted; by_page says the same the other way round. copies: further pages with the content of a
    node in a column, in the order in which they would be found.
    """

    def __init__(self, pool: PagePool) -> None:
        super().__init__(0)
        self.pool = pool
        self.by_page: dict[int, tuple[Node, int]] = {}
        self.copies: dict[tuple[Node, int], list[int]] = {}

    def path(self, contents: Iterable[Content]) -> list[Node]:
        """The nodes of the leading contents, as far as all pages that every token reads are there.
        Changes nothing.
        """
        path, node = [], self.root
        unbounded = [i for i, column in enumerate(self.pool.columns) if column.window is None]
        for content in contents:
            child = self.child(node, content)
            if child is None or any(child.memo[i] == NONE for i in unbounded):
                break
            path.append(child)
            node = child
        return path

    def hits(self, path: Row[Node], unready: Container[int]) -> list[int]:
        """After how many blocks, the most first, every group has what the next token reads,
        `unready` pages aside.
        """
        readable, runs = [], [0] * len(self.pool.columns)
        for num_blocks, node in enumerate(path, 1):
            pages = zip(runs, node.memo, strict=True)
            runs = [0 if page == NONE or page in unready else run + 1 for run, page in pages]
            end = num_blocks * self.pool.block_size
            if all(run >= num_blocks - self.pool.first_read(i, end) for i, run in enumerate(runs)):
                readable.append(num_blocks)
        return readable[::-1]

    def grown(self, node: Node, content: Content) -> Node:
        """The node of `content` behind `node`, which is made if there is none."""
        child = self.child(node, content)
        if child is None:
            child = self._nodes[node, content] = Node(node, content, 0, TOMBSTONE)
            child.memo = [NONE] * len(self.pool.columns)
            node.children += 1
        return child

    def set_page(self, node: Node, column: int, page: int) -> None:
        """The page has the node's content in this column, in place of any other."""
        if self.by_page.pop(node.memo[column], None) is None:
            self.keep(node)
        node.memo[column] = page
        self.by_page[page] = node, column

    def add_copy(self, node: Node, column: int, page: int) -> None:
        """The page has the node's content too, and is found when the others are gone."""
        self.by_page[page] = node, column
        self.copies.setdefault((node, column), []).append(page)

    def forget(self, page: int) -> None:
        """The page has no content that could be found any more; the next copy is found instead."""
        node, column = place = self.by_page.pop(page)
        others = self.copies.get(place, [])
        if page in others:
            others.remove(page)
        elif others:
            node.memo[column] = others.pop(0)
        else:
            node.memo[column] = NONE
            self.dereference(node)
        if not others:
            self.copies.pop(place, None)

    def check(self) -> None:
        super().check()
        pages = {
            page: (node, i)
            for node in self._nodes.values()
            for i, page in enumerate(node.memo)
            if page != NONE
        }
        pages |= {page: place for place, copies in self.copies.items() for page in copies}
        assert pages == self.by_page, "pages and nodes differ"
