"""A trace without a file: any number of rows drawn from a fitted length model."""

from functools import cached_property

import numpy as np

from testbed.core.errors import check_least
from testbed.core.request import Column, Rows
from testbed.core.units import NumTokens
from testbed.traces.drawn import Drawn
from testbed.traces.length_model import LengthModel


class Fitted(Drawn):
    """Rows drawn from an embedded length model, by name (sharegpt, alpaca, wmt).

    Rows are drawn in sequence from the seed's stream: a longer run begins with the rows of a
    shorter one. registered_prefix is the length in tokens of a provider's prefix before every
    prompt (section 6.4: 80 and 341).
    """

    def __init__(self, model: str, registered_prefix: NumTokens = 0) -> None:
        check_least(0, registered_prefix=registered_prefix)
        self.model, self.registered_prefix = model, registered_prefix

    @property
    def label(self) -> str:
        return self.model

    @cached_property
    def fitted(self) -> LengthModel:
        """The model, read at its first use."""
        return LengthModel.load(self.model)

    def draw(self, num_rows: int, rng: np.random.Generator) -> tuple[Column, Column]:
        """Draws at random ranks of the model, with the prefix before every prompt."""
        ranks = rng.random((num_rows, 2))
        prompts, outputs = self.fitted.at(ranks[:, 0], ranks[:, 1])
        return prompts + self.registered_prefix, outputs

    def of_lengths(self, prompts: Column, outputs: Column) -> Rows:
        """Rows without contents."""
        return Rows(prompts, outputs, registered_prefix=self.registered_prefix)
