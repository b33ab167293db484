"""AIConfigurator's matrix products: milliseconds of (m x k) by (k x n), on a grid of m, n and k."""

from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

DTYPE = "bfloat16"
US_PER_MS = 1000.0


class Gemms:
    """Times by shape; between measured n and k they are linear, beyond the last they grow in proportion."""

    def __init__(self, table: Any) -> None:
        rows = table[table["gemm_dtype"] == DTYPE]
        medians = rows.groupby(["m", "n", "k"])["latency"].median()
        self._us = {key: float(ms) * US_PER_MS for key, ms in medians.items()}
        self._m, self._n, self._k = (sorted({key[i] for key in self._us}) for i in range(3))

    def summed(self, shapes: Mapping[str, tuple[int, int]], notes: list[str]) -> list[list[float]]:
        """(m, microseconds) of these products one after the other; notes get how far outside the grid they are."""
        for name, (n, k) in shapes.items():
            for axis, value, grid in (("n", n, self._n), ("k", k, self._k)):
                note = _reach(name, axis, value, grid)
                notes += [note] if note else []
        return [[int(m), round(sum(self._at(m, *shape) for shape in shapes.values()), 3)] for m in self._m]

    def _at(self, m: int, n: int, k: int) -> float:
        low_n, high_n, at_n = _between(self._n, n)
        low_k, high_k, at_k = _between(self._k, k)
        low = _line(self._us[m, low_n, low_k], self._us[m, low_n, high_k], at_k)
        high = _line(self._us[m, high_n, low_k], self._us[m, high_n, high_k], at_k)
        return _line(low, high, at_n)


def _between(grid: list[int], x: int) -> tuple[int, int, float]:
    """The neighbours of x, and how far from the first to the second it lies; more than 1 beyond the last."""
    i = min(max(1, bisect_left(grid, x)), len(grid) - 1)
    low, high = grid[i - 1], grid[i]
    return low, high, (x - low) / (high - low)


def _line(low: float, high: float, share: float) -> float:
    return low + (high - low) * share


def _reach(name: str, axis: str, value: int, grid: list[int]) -> str | None:
    """What to say of a shape that is off the grid, or in its wide gap."""
    if value > grid[-1] or value < grid[0]:
        return f"outside the grid: {name} has {axis} {value:,}, measured were {grid[0]:,} to {grid[-1]:,}"
    low, high, share = _between(grid, value)
    if 0 < share < 1 and high > 2 * low:
        return f"in a gap of the grid: {name} has {axis} {value:,}, measured were {low:,} and {high:,}; linear between"
    return None
