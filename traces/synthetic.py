"""Traces without a file: a fitted length model, or two simple distributions."""

from functools import cached_property

import numpy as np

from testbed.core.errors import InputError
from testbed.core.request import Column
from traces.distributions import Distribution
from traces.length_model import LengthModel, load_model
from traces.reader import DrawnTrace


class Fitted(DrawnTrace):
    """Rows drawn from a fitted length model: an embedded one by name (sharegpt, alpaca, wmt), or a .json file.

    Rows come one after another from the seed's stream: a longer run begins with the rows of a shorter one. prefix is
    the length in tokens of a provider's prefix that is put before every prompt (section 6.4: 80 and 341).
    """

    def __init__(self, model: str, prefix: int = 0) -> None:
        if prefix < 0:
            raise InputError(f"trace {model}: prefix is {prefix}; it must be 0 or more tokens")
        self.model, self.prefix = model, prefix

    @property
    def name(self) -> str:
        """The model's name or path."""
        return self.model

    @cached_property
    def fitted(self) -> LengthModel:
        """The model itself, read when first used."""
        return LengthModel.from_json(*load_model(self.model))

    def draw(self, num_rows: int, rng: np.random.Generator) -> tuple[Column, Column]:
        """num_rows rows at random ranks of the model."""
        ranks = rng.random((num_rows, 2))
        prompts, outputs = self.fitted.at(ranks[:, 0], ranks[:, 1])
        return prompts + self.prefix, outputs


class Synthetic(DrawnTrace):
    """Rows whose prompt and output lengths are drawn from two distributions, independently of each other."""

    def __init__(self, prompt: Distribution, output: Distribution) -> None:
        self.prompt, self.output = prompt, output

    def draw(self, num_rows: int, rng: np.random.Generator) -> tuple[Column, Column]:
        """num_rows rows of the two distributions."""
        return self.prompt.draw(num_rows, rng), self.output.draw(num_rows, rng)
