"""The units of a page pool that no sequence holds and that are not free: cached pages, and what rounding wastes."""

from collections.abc import Iterable, Iterator

from testbed.core.slots import Extent, NonSequenceSlots
from testbed.memory.groups.page_rules import PagePool

PageOf = tuple[int, int]  # column, and first unit


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
