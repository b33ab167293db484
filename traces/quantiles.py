"""Quantile tables: probabilities and the order statistics there, linear between them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.core.errors import InputError
from testbed.core.request import Column

Floats = NDArray[np.float64]


def grid(num_cells: int, tail: Sequence[float] = (0.99, 0.995, 0.998)) -> Floats:
    """Probabilities 0, 1/n .. 1 and a finer upper tail, where lengths are far apart."""
    even = [i / num_cells for i in range(num_cells + 1)]
    return np.array(sorted({*even, *tail}))


def order_statistics(values: Column, probs: Floats) -> Column:
    """The values at these ranks (inverse of the empirical distribution): whole numbers that occur in `values`."""
    places = np.floor(probs * len(values)).astype(np.int64)
    return np.sort(values)[np.minimum(places, len(values) - 1)]


def cell(edges: Floats, u: Floats) -> Column:
    """Index k of the cell [edges[k], edges[k+1]) that holds each u in [0, 1)."""
    return np.searchsorted(edges[1:-1], u, side="right")


@dataclass(frozen=True, slots=True)
class QuantileTable:
    """One row of quantiles for each bin, all at the same probabilities; a marginal distribution has one bin."""

    probs: Floats
    rows: Floats

    @classmethod
    def of(cls, groups: Sequence[Column], probs: Floats) -> "QuantileTable":
        """The table of these groups of values, a row for each group."""
        return cls(probs, np.array([order_statistics(values, probs) for values in groups], dtype=np.float64))

    @classmethod
    def from_json(cls, data: Any, where: str) -> "QuantileTable":
        """The table that to_json wrote; `where` names it in errors."""
        try:
            table = cls(*(np.array(data[key], dtype=np.float64) for key in ("probs", "rows")))
            table.check()
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{where}: not a table of quantiles ({error}); make it again with traces.fit") from error
        return table

    def to_json(self) -> dict[str, list[Any]]:
        """Plain lists, whole numbers where they are whole."""
        return {"probs": [round(p, 6) for p in self.probs.tolist()], "rows": self.rows.astype(np.int64).tolist()}

    def check(self) -> None:
        """Probabilities climb from 0 to 1 and the rows never fall."""
        if self.rows.ndim != 2 or self.probs.shape != self.rows.shape[1:]:
            raise ValueError("each row must have one quantile for each probability")
        if self.probs[0] != 0 or self.probs[-1] != 1 or not (np.diff(self.probs) > 0).all():
            raise ValueError("the probabilities must climb from 0 to 1")
        if not (np.diff(self.rows, axis=1) >= 0).all() or not (self.rows >= 0).all():
            raise ValueError("quantiles must be at least 0 and never fall")

    def lookup(self, u: Floats, bins: Column | int = 0) -> Column:
        """The length at probability u of each one's bin, rounded to a whole number."""
        k = cell(self.probs, u)
        low, high = self.rows[bins, k], self.rows[bins, k + 1]
        share = (u - self.probs[k]) / (self.probs[k + 1] - self.probs[k])
        found: Column = np.rint(low + share * (high - low)).astype(np.int64)
        return found
