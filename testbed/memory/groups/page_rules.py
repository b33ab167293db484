"""Rules by which the KV groups of a model share the pages of one pool; the third is in large_pages.

A unit is what a token takes in one attention layer. A column is a part of a group's layers that lies in one page for
each block of tokens; most groups are one column.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import gcd
from typing import ClassVar, NamedTuple

from testbed.core.errors import InputError
from testbed.core.layers import KvGroup
from testbed.core.slots import Extent, ceil_div

Pages = list[list[int]]  # of each column, the first units of some pages


class Column(NamedTuple):
    """`width` units for each token, of which the last `window` are read; or `state` units for each sequence."""

    group: int
    width: int
    window: int | None = None
    state: int = 0

    @property
    def per_block(self) -> bool:
        """Whether a sequence has a page for each block of its tokens; a state without checkpoints has one for all."""
        return not self.state or self.window is not None


class PagePool(ABC):
    """Pages of a pool of `total` units; `columns` say what a sequence needs a page for, one for each block of tokens.

    Counts are by column. free_units counts what no group has; a unit of an allocated page that its column cannot use
    is rounding. A page that was taken may be idle: no sequence holds it, and it is findable until it is put back.
    `idle` counts these; columns with the same `queue` may replace each other's idle pages. Every page begins at a
    multiple of page_units.
    """

    hits_save: ClassVar[bool] = True  # a sequence never needs more pages because it holds idle ones

    def __init__(self, columns: Sequence[Column], block_size: int) -> None:
        self.columns = tuple(columns)
        self.block_size = block_size
        self.total = 0
        self.page_units = gcd(*(self.used_units(i) for i in range(len(self.columns))))
        self.idle = [0] * len(self.columns)
        self.nothing: Pages = [[] for _ in self.columns]

    def used_units(self, column: int) -> int:
        """Units of a page that its column uses."""
        one = self.columns[column]
        return one.state or one.width * self.block_size

    def whole(self, column: int, page: int) -> Extent:
        """What nobody else can take while this page is held or idle: the page, with what its column cannot use."""
        return Extent(page, max(self.used_units(column), self.page_units))

    @property
    @abstractmethod
    def free_units(self) -> int:
        """Units in pages that any sequence may get."""

    @property
    def idle_units(self) -> int:
        """Units of idle pages, with what these make unusable: all are free once these are put back."""
        return sum(count * self.used_units(i) for i, count in enumerate(self.idle))

    def queue(self, column: int) -> int:
        """The number of the queue in which idle pages of this column wait."""
        return 0

    def set_idle(self, column: int, page: int, idle: bool) -> None:
        """No sequence holds the page any more, or one does again."""
        self.idle[column] += 1 if idle else -1

    @abstractmethod
    def fits(self, needed: Sequence[int], returned: Pages, revived: Pages | None = None) -> bool:
        """Whether these pages can be taken, idle ones too, once `returned` are back, while idle `revived` are held."""

    def free_rounds(self, num_seqs: int) -> int:
        """How often num_seqs sequences can take the pages of a block that are free now and have no unused unit.

        What a page stores must grow with the tokens: checkpoints of states do not.
        """
        return 0

    @abstractmethod
    def short(self, needed: Sequence[int]) -> int | None:
        """The queue of which an idle page must be put back before these pages can be taken; None: there are enough."""

    @abstractmethod
    def take(self, column: int, count: int) -> list[int]:
        """Take pages, for which there is space."""

    @abstractmethod
    def put(self, column: int, pages: Sequence[int]) -> None:
        """Give pages back."""


class OnePageSize(PagePool):
    """vLLM's rule: every page has the same layers x tokens, and a group of more layers takes several of them.

    A page has the layers of the smallest group, or those of the largest where it has less than half more (0.19's
    `_get_kv_cache_groups_uniform_page_size`); a group's layers are dealt out to its columns, some with padding. A state
    must fit a page.
    """

    def __init__(self, total: int, groups: Sequence[KvGroup], block_size: int) -> None:
        counts = [group.num_layers for group in groups]
        layers = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
        slot_bytes = max(group.slot_bytes for group in groups)
        columns = list[Column]()
        for i, group in enumerate(groups):
            state = ceil_div(group.state_bytes, slot_bytes)
            if state > block_size:
                raise InputError(f"block_size={block_size}: a page is smaller than a state (give {state} or more)")
            num_columns = ceil_div(group.num_layers, layers)
            for column in range(num_columns):
                width = len(range(column, group.num_layers, num_columns))
                columns.append(Column(i, 0 if state else width, group.window, state * width))
        super().__init__(columns, block_size)
        self.page_units = layers * block_size
        num_pages = total // self.page_units
        self.total = num_pages * self.page_units
        self._free = [page * self.page_units for page in reversed(range(num_pages))]

    @property
    def free_units(self) -> int:
        return len(self._free) * self.page_units

    @property
    def idle_units(self) -> int:
        return sum(self.idle) * self.page_units

    def fits(self, needed: Sequence[int], returned: Pages, revived: Pages | None = None) -> bool:
        held = sum(map(len, revived or ())) - sum(map(len, returned))
        return sum(needed) + held <= len(self._free) + sum(self.idle)

    def free_rounds(self, num_seqs: int) -> int:
        growing = [one.width * self.block_size for one in self.columns if one.per_block]
        return len(self._free) // (num_seqs * len(growing)) if {*growing} == {self.page_units} else 0

    def short(self, needed: Sequence[int]) -> int | None:
        return 0 if sum(needed) > len(self._free) else None

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

    def queue(self, column: int) -> int:
        return column

    def fits(self, needed: Sequence[int], returned: Pages, revived: Pages | None = None) -> bool:
        held = [len(pages) for pages in revived or self.nothing]
        return all(
            needed[i] + held[i] <= len(free) + len(returned[i]) + self.idle[i] for i, free in enumerate(self._free)
        )

    def free_rounds(self, num_seqs: int) -> int:
        return min(map(len, self._free)) // num_seqs

    def short(self, needed: Sequence[int]) -> int | None:
        return next((i for i, free in enumerate(self._free) if needed[i] > len(free)), None)

    def take(self, column: int, count: int) -> list[int]:
        return [self._free[column].pop() for _ in range(count)]

    def put(self, column: int, pages: Sequence[int]) -> None:
        self._free[column].extend(reversed(pages))
