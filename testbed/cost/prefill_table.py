"""Prefill attention by new and stored tokens."""

from functools import cache

from testbed.cost.knots import Knots
from testbed.cost.sections import Rows


class PrefillTable:
    """Prefill attention of all layers for (new, past) tokens: the larger of the slowest sequence alone and the sum
    of all at the rate that a full GPU reaches.

    Where prompts were measured whole only, new tokens behind past ones take what the whole takes beyond the past.
    """

    def __init__(self, points: Rows, num_layers: int) -> None:
        alone: dict[int, list[tuple[int, int]]] = {}
        full: dict[int, list[tuple[int, int]]] = {}
        for (count, new, past), ps in points:
            table = alone if count == 1 else full
            table.setdefault(new, []).append((past, ps * num_layers // count))
        self._curves = [{new: Knots(curve) for new, curve in table.items()} for table in (alone, full or alone)]
        self._whole_only = not any(past for (_, _, past), _ in points)
        self._price = cache(self._price_ps)

    def __call__(self, prefill: tuple[tuple[int, int], ...]) -> int:
        prices = [self._price(new, past) for new, past in prefill]
        return max(max(alone for alone, _ in prices), sum(full for _, full in prices)) if prices else 0

    def _price_ps(self, new: int, past: int) -> tuple[int, int]:
        if past and self._whole_only:
            whole, stored, least = self._price(new + past, 0), self._price(past, 0), self._price(new, 0)
            return max(whole[0] - stored[0], least[0]), max(whole[1] - stored[1], least[1])
        alone, full = (Knots((new_i, curve(past)) for new_i, curve in curves.items())(new) for curves in self._curves)
        return alone, full
