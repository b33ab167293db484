"""Three rules by which the KV groups of a model share the pages of one pool.

A unit is what a token takes in one attention layer. A column is a part of a group's layers that lies in one page for
each block of tokens; most groups are one column.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import lcm
from typing import NamedTuple

from testbed.core.errors import InputError
from testbed.core.layers import KvGroup
from testbed.core.slots import ceil_div

Pages = list[list[int]]  # of each column, the first units of some pages


class Column(NamedTuple):
    """`width` units for each token, of which the last `window` are read; or `state` units for each sequence."""

    group: int
    width: int
    window: int | None = None
    state: int = 0


class PagePool(ABC):
    """Pages of a pool of `total` units; `columns` say what a sequence needs a page for, one for each block of tokens.

    Counts are by column. free_units counts what no group has; a unit of an allocated page that its column cannot use
    is rounding.
    """

    def __init__(self, columns: Sequence[Column], block_size: int) -> None:
        self.columns = tuple(columns)
        self.block_size = block_size
        self.total = 0

    def used_units(self, column: int) -> int:
        """Units of a page that its column uses."""
        one = self.columns[column]
        return one.state or one.width * self.block_size

    @property
    @abstractmethod
    def free_units(self) -> int:
        """Units in pages that any sequence may get."""

    @abstractmethod
    def fits(self, needed: Sequence[int], returned: Pages) -> bool:
        """Whether so many pages of each column can be taken once `returned` are given back."""

    @abstractmethod
    def take(self, column: int, count: int) -> list[int]:
        """Take pages, for which there is space."""

    @abstractmethod
    def put(self, column: int, pages: Sequence[int]) -> None:
        """Give pages back."""


class OnePageSize(PagePool):
    """vLLM's rule: every page has the same layers x tokens, and a group of more layers takes several of them.

    A page has the layers of the smallest group, or those of the largest where it has less than a quarter more
    (`_get_kv_cache_groups_uniform_page_size`); a group's last column is padded. A state must fit a page.
    """

    def __init__(self, total: int, groups: Sequence[KvGroup], block_size: int) -> None:
        counts = [group.num_layers for group in groups]
        layers = max(counts) if max(counts) < 1.25 * min(counts) else min(counts)
        slot_bytes = max(group.slot_bytes for group in groups)
        columns = list[Column]()
        for i, group in enumerate(groups):
            state = ceil_div(group.state_bytes, slot_bytes)
            if state > block_size:
                raise InputError(f"block_size={block_size}: a page is smaller than a state (give {state} or more)")
            for first in range(0, group.num_layers, layers):
                width = min(layers, group.num_layers - first)
                columns.append(Column(i, 0 if state else width, group.window, state * width))
        super().__init__(columns, block_size)
        self._page = layers * block_size
        num_pages = total // self._page
        self.total = num_pages * self._page
        self._free = [page * self._page for page in reversed(range(num_pages))]

    @property
    def free_units(self) -> int:
        return len(self._free) * self._page

    def fits(self, needed: Sequence[int], returned: Pages) -> bool:
        return sum(needed) <= len(self._free) + sum(map(len, returned))

    def take(self, column: int, count: int) -> list[int]:
        return [self._free.pop() for _ in range(count)]

    def put(self, column: int, pages: Sequence[int]) -> None:
        self._free.extend(reversed(pages))


class FixedSplit(PagePool):
    """SGLang's rule: every group has a separate pool; one with a window has `window_share` of the others' tokens."""

    def __init__(self, total: int, groups: Sequence[KvGroup], block_size: int, window_share: float = 0.8) -> None:
        if not 0 < window_share <= 1:
            raise InputError(f"window_share={window_share}: must be a share, above 0 and at most 1")
        if any(group.state_bytes for group in groups):
            raise InputError("page_rule=fixed_split: has no share for states (choose one_page_size or large_pages)")
        super().__init__([Column(i, g.num_layers, g.window) for i, g in enumerate(groups)], block_size)
        shares = [1.0 if group.window is None else window_share for group in groups]
        widths = [self.used_units(i) for i in range(len(groups))]
        units = 0.0  # of a block in every group
        for share, width in zip(shares, widths, strict=True):
            units += share * width
        blocks = total / units
        self._free, start = list[list[int]](), 0
        for share, width in zip(shares, widths, strict=True):
            count = int(share * blocks)
            self._free.append([start + page * width for page in reversed(range(count))])
            start += count * width
        self.total = start

    @property
    def free_units(self) -> int:
        return sum(len(pages) * self.used_units(i) for i, pages in enumerate(self._free))

    def fits(self, needed: Sequence[int], returned: Pages) -> bool:
        return all(n <= len(free) + len(back) for n, free, back in zip(needed, self._free, returned, strict=True))

    def take(self, column: int, count: int) -> list[int]:
        return [self._free[column].pop() for _ in range(count)]

    def put(self, column: int, pages: Sequence[int]) -> None:
        self._free[column].extend(reversed(pages))


class LargePages(PagePool):
    """Jenga's rule (SOSP 2025): a large page is the least common multiple of the groups' pages, and cut for one group.

    A large page whose small pages are all free is any group's again. Small pages come from the large page of their
    group that was cut first; Jenga also keeps those of one request together, which is not modelled.
    """

    def __init__(self, total: int, groups: Sequence[KvGroup], block_size: int) -> None:
        slot_bytes = max(group.slot_bytes for group in groups)
        states = [ceil_div(group.num_layers * group.state_bytes, slot_bytes) for group in groups]
        columns = [
            Column(i, 0 if state else group.num_layers, group.window, state)
            for i, (group, state) in enumerate(zip(groups, states, strict=True))
        ]
        super().__init__(columns, block_size)
        self._large = lcm(*(self.used_units(i) for i in range(len(columns))))
        num_large = total // self._large
        self.total = num_large * self._large
        self._free = [page * self._large for page in reversed(range(num_large))]
        self._cut: list[dict[int, list[int]]] = [{} for _ in columns]  # by column and large page, small ones free

    @property
    def free_units(self) -> int:
        return len(self._free) * self._large

    def _each(self, column: int) -> int:
        return self._large // self.used_units(column)

    def fits(self, needed: Sequence[int], returned: Pages) -> bool:
        large = len(self._free)
        for column, count in enumerate(needed):
            back = [page - page % self._large for page in returned[column]]
            small = sum(map(len, self._cut[column].values())) + len(back)
            whole = sum(len(self._cut[column][page]) + back.count(page) == self._each(column) for page in set(back))
            small, large = small - whole * self._each(column), large + whole
            large -= max(ceil_div(count - small, self._each(column)), 0)
        return large >= 0

    def take(self, column: int, count: int) -> list[int]:
        cut, taken = self._cut[column], list[int]()
        for free in cut.values():
            while free and len(taken) < count:
                taken.append(free.pop())
        while len(taken) < count:
            page = self._free.pop()
            cut[page] = [page + i * self.used_units(column) for i in reversed(range(self._each(column)))]
            while cut[page] and len(taken) < count:
                taken.append(cut[page].pop())
        return taken

    def put(self, column: int, pages: Sequence[int]) -> None:
        cut = self._cut[column]
        for page in pages:
            large = page - page % self._large
            cut[large].append(page)
            if len(cut[large]) == self._each(column):
                del cut[large]
                self._free.append(large)
