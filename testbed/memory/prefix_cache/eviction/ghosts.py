"""Ghosts: the blocks that a queue has evicted, by their chained hashes."""

from collections import OrderedDict


class Ghosts:
    """First in, first out. A collision of hashes takes one block for another, which changes an
    order's choice and never what a prompt finds.

    The caller trims after the blocks that replace the evicted ones were looked up, as an order does
    that looks a block up before it makes room for it.
    """

    def __init__(self) -> None:
        self._codes: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._codes)

    def remember(self, code: int) -> None:
        """Add a block, behind all others."""
        self._codes[code] = None

    def take(self, code: int) -> bool:
        """Forget this block; whether it was there."""
        if code not in self._codes:
            return False
        del self._codes[code]
        return True

    def trim(self, limit: int) -> None:
        """Keep the last `limit` blocks."""
        while len(self._codes) > limit:
            self._codes.popitem(last=False)
