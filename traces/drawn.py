"""Traces without a file: any number of rows, drawn in sequence from a stream of the seed."""

from abc import abstractmethod

import numpy as np

from testbed.core.errors import InputError, check_least
from testbed.core.request import Column, Rows
from testbed.traces.reader import Trace, stream

MAX_REDRAWS = 100


class Drawn(Trace):
    """Rows drawn at random: a longer run begins with the rows of a shorter one."""

    def rows(self, num_rows: int | None, seed: int, max_len: int | None = None) -> Rows:
        """num_rows draws; rows of max_len tokens or more are drawn again."""
        if num_rows is None:
            raise InputError(
                key=self.label, problem="a drawn trace has no end", remedy="give the number of rows"
            )
        return self.of_lengths(*self.lengths(num_rows, seed, max_len))

    def lengths(self, num_rows: int, seed: int, max_len: int | None) -> tuple[Column, Column]:
        """Prompt and output lengths in tokens, of less than max_len tokens together."""
        check_least(0, num_rows=num_rows)
        rng, kept = stream(seed, "lengths"), np.empty((2, 0), np.int64)
        for _ in range(MAX_REDRAWS):
            drawn = np.concatenate([kept, self.draw(num_rows - kept.shape[1], rng)], axis=1)
            kept = drawn if max_len is None else drawn[:, drawn.sum(axis=0) < max_len]
            if kept.shape[1] == num_rows:
                return kept[0], kept[1]
        raise InputError(
            key=self.label,
            problem=f"hardly any row is shorter than {max_len} tokens",
            remedy="raise the limit",
        )

    @property
    @abstractmethod
    def label(self) -> str:
        """The trace's name in error messages."""

    @abstractmethod
    def draw(self, num_rows: int, rng: np.random.Generator) -> tuple[Column, Column]:
        """Prompt and output lengths in tokens of num_rows rows."""

    @abstractmethod
    def of_lengths(self, prompts: Column, outputs: Column) -> Rows:
        """The rows of these lengths, with their contents."""
