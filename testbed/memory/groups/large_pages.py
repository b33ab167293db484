"""The third rule by which KV groups share the pages of one pool: large pages, each cut into small ones of one group."""

from collections.abc import Sequence
from math import lcm
from typing import ClassVar

from testbed.core.layers import KvGroup
from testbed.core.slots import Extent, ceil_div
from testbed.memory.groups.page_rules import Column, PagePool, Pages


class LargePages(PagePool):
    """Jenga's rule (SOSP 2025): a large page is the least common multiple of the groups' pages, and cut for one group.

    A large page whose small pages are all free is any group's again, and so is one whose small pages are free or idle.
    Small pages come from the large page of their group that was cut first; Jenga also keeps those of one request
    together, which is not modelled.
    """

    hits_save: ClassVar[bool] = False  # idle pages may lie in more large pages than new ones would

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
        self._held: list[dict[int, int]] = [{} for _ in columns]  # the same, small ones held
        self._num_held = [0] * len(columns)
        self._unheld = [0] * len(columns)  # large pages that were cut, of which none is held
        self._idle_in_unheld = [0] * len(columns)

    @property
    def free_units(self) -> int:
        return len(self._free) * self._large

    @property
    def idle_units(self) -> int:
        apart = zip(self.idle, self._idle_in_unheld, strict=True)
        in_held = sum((idle - within) * self.used_units(i) for i, (idle, within) in enumerate(apart))
        return sum(self._unheld) * self._large + in_held

    def whole(self, column: int, page: int) -> Extent:
        return Extent(page - page % self._large, self._large)

    def _each(self, column: int) -> int:
        return self._large // self.used_units(column)

    def set_idle(self, column: int, page: int, idle: bool) -> None:
        super().set_idle(column, page, idle)
        self._hold(column, page - page % self._large, -1 if idle else 1)

    def _hold(self, column: int, large: int, change: int) -> None:
        """So many more small pages of a large one are held; free ones are in `_cut` before and after."""
        held = self._held[column]
        before, after = held[large], held[large] + change
        sign = (after == 0) - (before == 0)
        self._unheld[column] += sign
        self._idle_in_unheld[column] += sign * (self._each(column) - len(self._cut[column][large]))
        self._num_held[column] += change
        held[large] = after

    def fits(self, needed: Sequence[int], returned: Pages, revived: Pages | None = None) -> bool:
        large = len(self._free)
        for column, count in enumerate(needed):
            each, held, change = self._each(column), self._held[column], dict[int, int]()
            for pages, sign in ((returned[column], -1), (revived[column] if revived else (), 1)):
                for page in pages:
                    change[page - page % self._large] = change.get(page - page % self._large, 0) + sign
            whole = self._unheld[column] + sum((held[one] + n == 0) - (held[one] == 0) for one, n in change.items())
            small = (len(held) - whole) * each - self._num_held[column] - sum(change.values())
            large += whole - max(ceil_div(count - small, each), 0)
        return large >= 0

    def short(self, needed: Sequence[int]) -> int | None:
        large = len(self._free)
        for column, count in enumerate(needed):
            each, unfree = self._each(column), self._num_held[column] + self.idle[column]
            large -= max(ceil_div(count - len(self._held[column]) * each + unfree, each), 0)
        return None if large >= 0 else 0

    def take(self, column: int, count: int) -> list[int]:
        cut, taken = self._cut[column], list[int]()
        for large, free in cut.items():
            while free and len(taken) < count:
                self._hold(column, large, 1)
                taken.append(free.pop())
        while len(taken) < count:
            page = self._free.pop()
            free = cut[page] = [page + i * self.used_units(column) for i in reversed(range(self._each(column)))]
            self._held[column][page] = 0
            self._unheld[column] += 1
            while free and len(taken) < count:
                self._hold(column, page, 1)
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
                self._free.append(large)
