"""The third rule by which KV groups share the pages of one pool: large pages, each cut into small
ones of one group.
"""

from collections import Counter
from collections.abc import Sequence
from math import gcd, lcm
from typing import ClassVar

from testbed.core.layers import KvGroup
from testbed.core.slots import Extent, ceil_div
from testbed.memory.groups.page_rules import PagePool, Pages, Queue
from testbed.memory.layouts import Column


class LargePages(PagePool):
    """Jenga's rule (SOSP 2025): a large page is the least common multiple of the groups' pages, and
    cut for one group.

    A large page whose small pages are all free is any group's again, and so is one whose small
    pages are free or idle. Small pages come from the large page of their group that was cut first;
    Jenga also keeps those of one request together, which is not modelled. The unfilled rest of a
    group's last large page is of no use to others: a pool for 9.8 sequences of Gemma-3 with 4,096
    tokens (40,000 slots) admits 9.
    """

    hits_save: ClassVar[bool] = False  # idle pages may lie in more large pages than new ones would
    serves_in_turn: ClassVar[bool] = False  # a large page is free when all have given back

    def __init__(self, total: int, groups: Sequence[KvGroup], block_size: int) -> None:
        slot_bytes = max(group.slot_bytes for group in groups)
        columns: list[Column] = []
        for i, group in enumerate(groups):
            width, page = group.num_layers, group.num_layers * block_size
            if group.state_bytes:
                width, page = 0, ceil_div(group.num_layers * group.state_bytes, slot_bytes)
            columns.append(Column(i, width, page, group.window))
        units = [column.units for column in columns]
        self._large = lcm(*units)
        super().__init__(columns, block_size, [self._large], [total // self._large])
        self.page_units = gcd(*units)
        # By column and large page: the small ones that are free, and how many are held
        self._cut: list[dict[int, list[int]]] = [{} for _ in columns]
        self._held: list[dict[int, int]] = [{} for _ in columns]
        self._num_held = [0] * len(columns)
        self._num_idle = [0] * len(columns)
        self._unheld = [0] * len(columns)  # large pages that were cut, of which none is held
        self._idle_in_unheld = [0] * len(columns)

    @property
    def idle_units(self) -> int:
        apart = zip(self._num_idle, self._idle_in_unheld, self.columns, strict=True)
        in_held = sum((idle - within) * column.units for idle, within, column in apart)
        return sum(self._unheld) * self._large + in_held

    def padded_extent(self, column: int, page: int) -> Extent:
        return Extent(page - page % self._large, self._large)

    def set_idle(self, column: int, page: int, idle: bool) -> None:
        super().set_idle(column, page, idle)
        self._num_idle[column] += 1 if idle else -1
        self._hold(column, page - page % self._large, -1 if idle else 1)

    def fits(self, needed: Sequence[int], returned: Pages, revived: Pages) -> bool:
        num_spare = len(self._free[0])  # large pages
        for column, count in enumerate(needed):
            pages_per_large, held, change = self._each(column), self._held[column], Counter[int]()
            change.update(page - page % self._large for page in revived[column])
            change.subtract(page - page % self._large for page in returned[column])
            newly_unheld = sum(
                (held[large] + more == 0) - (held[large] == 0) for large, more in change.items()
            )
            num_unheld = self._unheld[column] + newly_unheld
            num_held = self._num_held[column] + change.total()
            small_left = (len(held) - num_unheld) * pages_per_large - num_held
            num_spare += num_unheld - max(ceil_div(count - small_left, pages_per_large), 0)
        return num_spare >= 0

    def free_rounds(self, num_seqs: int) -> int:
        return 0

    def short(self, needed: Sequence[int]) -> Queue | None:
        num_cut = sum([self._to_cut(column, count) for column, count in enumerate(needed)])
        return None if num_cut <= len(self._free[0]) else self.idle[0]

    def take(self, column: int, count: int) -> list[int]:
        cut, units, taken = self._cut[column], self.columns[column].units, list[int]()
        for _ in range(self._to_cut(column, count)):
            large = self._free[0].pop()
            cut[large] = [large + i * units for i in reversed(range(self._each(column)))]
            self._held[column][large] = 0
            self._unheld[column] += 1
        for large, free in cut.items():
            while free and len(taken) < count:
                self._hold(column, large, 1)
                taken.append(free.pop())
        return taken

    def put(self, column: int, pages: Sequence[int]) -> None:
        cut = self._cut[column]
        for page in pages:
            large = page - page % self._large
            cut[large].append(page)
            self._hold(column, large, -1)
            if len(cut[large]) == self._each(column):
                del cut[large], self._held[column][large]
                self._unheld[column] -= 1
                self._free[0].append(large)

    def _each(self, column: int) -> int:
        return self._large // self.columns[column].units

    def _to_cut(self, column: int, count: int) -> int:
        """Large pages that must be cut for a column before `count` of its small pages are free."""
        pages_per_large, unfree = (
            self._each(column),
            self._num_held[column] + self._num_idle[column],
        )
        return max(
            ceil_div(count - len(self._held[column]) * pages_per_large + unfree, pages_per_large), 0
        )

    def _hold(self, column: int, large: int, change: int) -> None:
        """So many more small pages of a large one are held; free ones are in `_cut` before and
        after.
        """
        held = self._held[column]
        before, after = held[large], held[large] + change
        sign = (after == 0) - (before == 0)
        self._unheld[column] += sign
        self._idle_in_unheld[column] += sign * (self._each(column) - len(self._cut[column][large]))
        self._num_held[column] += change
        held[large] = after
