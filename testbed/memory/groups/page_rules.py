"""Rules by which the KV groups of a model share the pages of one pool; the third is in large_pages.

A unit is what a token takes in one attention layer. A column is a part of a group's layers that
lies in one page for each block of tokens; most groups are one column.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from math import gcd
from typing import ClassVar, TypeAlias

from testbed.core.errors import InputError
from testbed.core.layers import KvGroup, layers_of_page
from testbed.core.slots import Extent, ceil_div
from testbed.memory.layouts import Column

Pages: TypeAlias = list[list[int]]  # of each column, the first units of some pages
Queue: TypeAlias = OrderedDict[int, int]  # pages and their columns


class PagePool:
    """A pool of `total` units in parts, each of equal pages; `columns` say what a sequence needs a
    page for, and where.

    Counts are by column, sizes, free and idle pages by part. A unit of an allocated page that its
    column cannot use is rounding. A page that was taken may be idle: no sequence holds it, and it
    is findable until it is put back. `idle` has the least recently used first; pages among them
    that are in `blank` are free, but taken in their turn. Every page begins at a multiple of
    page_units.
    """

    hits_save: ClassVar[bool] = True  # a sequence never needs more pages because it holds idle ones
    serves_in_turn: ClassVar[bool] = True  # what a sequence gives back comes too late for others

    def __init__(
        self,
        columns: Sequence[Column],
        block_size: int,
        sizes: Sequence[int],
        counts: Sequence[int],
    ) -> None:
        self.columns = tuple(columns)
        # One column of each window: those of one window give back the same blocks
        self.windowed = tuple({c.window: i for i, c in enumerate(columns) if c.window}.values())
        # Those that have a page for each block, and one of them: they have equally many
        self.of_block = [int(column.per_block) for column in columns]
        self.growing = self.of_block.index(1) if 1 in self.of_block else None
        self.block_size = block_size
        self.page_units = gcd(*sizes)
        self.nothing: Pages = [[] for _ in columns]
        self.idle = [Queue() for _ in sizes]
        self.blank = [set[int]() for _ in sizes]
        self.total = 0
        self._sizes = sizes
        self._free = list[list[int]]()
        for size, count in zip(sizes, counts, strict=True):
            self._free.append([self.total + page * size for page in reversed(range(count))])
            self.total += count * size

    @property
    def free_units(self) -> int:
        """Units in pages that any sequence may get, and nothing is lost with."""
        parts = zip(self._free, self.blank, self._sizes, strict=True)
        return sum((len(pages) + len(blank)) * size for pages, blank, size in parts)

    @property
    def idle_units(self) -> int:
        """Units of idle pages, with what these make unusable: all are free once these are put
        back.
        """
        parts = zip(self.idle, self.blank, self._sizes, strict=True)
        return sum((len(pages) - len(blank)) * size for pages, blank, size in parts)

    def first_read(self, column: int, token: int) -> int:
        """The first block that a token reads, which also reads itself."""
        window = self.columns[column].window
        return 0 if window is None else max(token + 1 - window, 0) // self.block_size

    def padded_extent(self, column: int, page: int) -> Extent:
        """The slots that no other page can have while this one is held or idle: its own, and the
        padding that its column cannot use.
        """
        return Extent(page, self._sizes[self.columns[column].part])

    def queue(self, column: int) -> Queue:
        """The queue in which idle pages of this column wait."""
        return self.idle[self.columns[column].part]

    def set_idle(self, column: int, page: int, idle: bool) -> None:
        """No sequence holds the page any more, or one does again."""
        if idle:
            self.queue(column)[page] = column
        else:
            del self.queue(column)[page]
            self.blank[self.columns[column].part].discard(page)

    def put_last(self, column: int, page: int) -> None:
        """Give a page back that is taken after all that are idle now."""
        self.queue(column)[page] = column
        self.blank[self.columns[column].part].add(page)

    def fits(self, needed: Sequence[int], returned: Pages, revived: Pages) -> bool:
        """True if these pages can be taken, idle ones too, once `returned` are back, while idle
        `revived` are held.
        """
        changes = zip(needed, returned, revived, strict=True)
        wanted = self._by_part(count + len(more) - len(back) for count, back, more in changes)
        parts = zip(wanted, self._free, self.idle, strict=True)
        return all(count <= len(free) + len(idle) for count, free, idle in parts)

    def free_rounds(self, num_seqs: int) -> int:
        """The number of times that num_seqs sequences can take the pages of a block that are free
        now and have no unused unit.

        The contents of a page must grow with the tokens: checkpoints of states do not.
        """
        growing = [column for column in self.columns if column.per_block]
        if any(column.width * self.block_size < self._sizes[column.part] for column in growing):
            return 0
        counts = Counter(column.part for column in growing)
        return min(
            (len(self._free[part]) // (num_seqs * count) for part, count in counts.items()),
            default=0,
        )

    def short(self, needed: Sequence[int]) -> Queue | None:
        """The queue of which an idle page must be put back before these pages can be taken; None:
        there are enough.
        """
        parts = zip(self._by_part(needed), self._free, self.idle, strict=True)
        return next((idle for count, free, idle in parts if count > len(free)), None)

    def take(self, column: int, count: int) -> list[int]:
        """Take pages, for which there is space."""
        free = self._free[self.columns[column].part]
        return [free.pop() for _ in range(count)]

    def put(self, column: int, pages: Sequence[int]) -> None:
        """Give pages back."""
        self._free[self.columns[column].part].extend(reversed(pages))

    def _by_part(self, counts: Iterable[int]) -> list[int]:
        sums = [0] * len(self._free)
        for column, count in zip(self.columns, counts, strict=True):
            sums[column.part] += count
        return sums


class OnePageSize(PagePool):
    """vLLM's rule: every page has the same layers x tokens, and a group of more layers takes
    several of them.

    A group's layers are dealt out to its columns, some with padding. A state must fit a page.
    """

    def __init__(self, total: int, groups: Sequence[KvGroup], block_size: int) -> None:
        layers = layers_of_page(groups)
        slot_bytes = max(group.slot_bytes for group in groups)
        columns: list[Column] = []
        for i, group in enumerate(groups):
            state = ceil_div(group.state_bytes, slot_bytes)
            if state > block_size:
                raise InputError(
                    key="block_size",
                    value=block_size,
                    problem="a page is smaller than a state",
                    remedy=f"give {state} or more",
                )
            num_columns = ceil_div(group.num_layers, layers)
            for column in range(num_columns):
                width = len(range(column, group.num_layers, num_columns))
                columns.append(
                    Column(i, 0 if state else width, width * (state or block_size), group.window)
                )
        size = layers * block_size
        super().__init__(columns, block_size, [size], [total // size])


class FixedSplit(PagePool):
    """SGLang's rule: every group has a separate pool; one with a window has `window_share` of the
    others' tokens.
    """

    def __init__(
        self, total: int, groups: Sequence[KvGroup], block_size: int, window_share: float = 0.8
    ) -> None:
        if not 0 < window_share <= 1:
            raise InputError(
                key="window_share",
                value=window_share,
                problem="must be a share, above 0 and at most 1",
            )
        if any(group.state_bytes for group in groups):
            raise InputError(
                key="page_rule",
                value="fixed_split",
                problem="has no share for states",
                remedy="choose one_page_size or large_pages",
            )
        sizes = [group.num_layers * block_size for group in groups]
        columns = [
            Column(group=i, width=g.num_layers, units=sizes[i], window=g.window, part=i)
            for i, g in enumerate(groups)
        ]
        shares = [1.0 if group.window is None else window_share for group in groups]
        units = 0.0  # of a block in every group
        for share, size in zip(shares, sizes, strict=True):
            units += share * size
        super().__init__(
            columns, block_size, sizes, [int(share * (total / units)) for share in shares]
        )
