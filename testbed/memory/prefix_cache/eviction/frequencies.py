"""The frequencies of recent uses of blocks, by their chained hashes."""

MOST_USES = 15  # that a block is credited with, as by a counter of four bits


class Frequencies:
    """Exact counts in place of TinyLFU's sketch: all are halved after `sample` uses, and a block
    without a use left is forgotten.
    """

    def __init__(self) -> None:
        self._uses: dict[int, int] = {}
        self._num_counted = 0

    def count(self, code: int, sample: int) -> None:
        """One more use of the block."""
        self._uses[code] = min(self._uses.get(code, 0) + 1, MOST_USES)
        self._num_counted += 1
        if self._num_counted >= sample:
            self._uses = {code: uses // 2 for code, uses in self._uses.items() if uses > 1}
            self._num_counted //= 2

    def of(self, code: int) -> int:
        """Its uses."""
        return self._uses.get(code, 0)
