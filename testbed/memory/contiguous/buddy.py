"""A buddy allocator over a range of units, independent of sequences (Knuth, TAOCP vol. 1, section
2.5).
"""


class BuddyAllocator:
    """Aligned ranges of 2^order units, lowest address first; a pool starts as the powers of two
    that fill it from 0.
    """

    __slots__ = ("_free", "max_order", "num_free", "num_units")

    def __init__(self, num_units: int) -> None:
        self.num_units = num_units
        self.num_free = num_units
        self.max_order = max(num_units.bit_length() - 1, 0)
        self._free: list[set[int]] = [set() for _ in range(self.max_order + 1)]
        start = 0
        for order in range(self.max_order, -1, -1):
            if num_units >> order & 1:
                self._free[order].add(start)
                start += 1 << order

    def allocate(self, order: int) -> int | None:
        """First unit of a free range of 2^order units, or None if there is none."""
        for larger in range(order, self.max_order + 1):
            if self._free[larger]:
                break
        else:
            return None
        start = min(self._free[larger])  # few free ranges exist at any time, so they are unsorted
        self._free[larger].remove(start)
        while larger > order:
            larger -= 1
            self._free[larger].add(start + (1 << larger))
        self.num_free -= 1 << order
        return start

    def free(self, start: int, order: int) -> None:
        """Free a range and merge it with its buddy for as long as the buddy is free."""
        self.num_free += 1 << order
        while order < self.max_order and (start ^ 1 << order) in self._free[order]:
            self._free[order].remove(start ^ 1 << order)
            start &= ~(1 << order)
            order += 1
        self._free[order].add(start)

    def largest_free(self) -> int:
        order = self.max_order
        while order and not self._free[order]:
            order -= 1
        return 1 << order if self._free[order] else 0

    def free_ranges(self) -> list[tuple[int, int]]:
        return sorted(
            (start, 1 << order) for order, starts in enumerate(self._free) for start in starts
        )
