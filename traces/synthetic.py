"""A trace without a file: any number of rows drawn from a fitted length model."""

from functools import cached_property

import numpy as np

from testbed.core.errors import InputError, check_least
from testbed.core.request import Column, Rows
from testbed.core.units import NumTokens
from testbed.traces.length_model import LengthModel
from testbed.traces.reader import Trace, stream

MAX_REDRAWS = 100


class Fitted(Trace):
    """Rows drawn from an embedded length model, by name (sharegpt, alpaca, wmt).

    Rows are drawn in sequence from the seed's stream: a longer run begins with the rows of a
    shorter one. registered_prefix is the length in tokens of a provider's prefix before every
    prompt (section 6.4: 80 and 341).
    """

    def __init__(self, model: str, registered_prefix: NumTokens = 0) -> None:
        check_least(0, registered_prefix=registered_prefix)
        self.model, self.registered_prefix = model, registered_prefix

    @cached_property
    def fitted(self) -> LengthModel:
        """The model, read at its first use."""
        return LengthModel.load(self.model)

    def rows(self, num_rows: int | None, seed: int, max_len: int | None = None) -> Rows:
        """num_rows draws at random ranks of the model; rows of max_len tokens or more are drawn
        again.
        """
        if num_rows is None:
            raise InputError(f"{self.model}: a drawn trace has no end (give the number of rows)")
        check_least(0, num_rows=num_rows)
        rng, kept = stream(seed, "lengths"), np.empty((2, 0), np.int64)
        for _ in range(MAX_REDRAWS):
            drawn = np.concatenate([kept, self._draw(num_rows - kept.shape[1], rng)], axis=1)
            kept = drawn if max_len is None else drawn[:, drawn.sum(axis=0) < max_len]
            if kept.shape[1] == num_rows:
                return Rows(kept[0], kept[1], registered_prefix=self.registered_prefix)
        raise InputError(
            f"{self.model}: hardly any row is shorter than {max_len} tokens (raise the limit)"
        )

    def _draw(self, num_rows: int, rng: np.random.Generator) -> tuple[Column, Column]:
        ranks = rng.random((num_rows, 2))
        prompts, outputs = self.fitted.at(ranks[:, 0], ranks[:, 1])
        return prompts + self.registered_prefix, outputs
