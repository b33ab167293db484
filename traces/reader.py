"""The plug-in API for traces, the sources of a workload's prompts and outputs."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from random import Random

import numpy as np

from testbed.core.errors import InputError, check_least
from testbed.core.request import Column, Rows


class Trace(ABC):
    """Plug-in: a source of rows. A subclass may read files; rows() must not change its state."""

    @abstractmethod
    def rows(self, num_rows: int | None, seed: int, max_len: int | None = None) -> Rows:
        """Rows for this seed.

        Args:
            num_rows: how many; None: the whole trace unchanged.
            seed: of what is drawn, at least 0.
            max_len: keeps only rows whose prompt and output sum to less than max_len tokens; it is
                applied before num_rows are taken (the artifact's filter, 2048 for the paper's
                figures).
        """


class FileTrace(Trace):
    """A trace read from a file: all rows in order, or N rows by the recipe of the paper's artifact.

    The recipe (protocol.json, "lengths") takes the first N rows in file order, repeats the file if
    it is too short, and shuffles them with Python's random.Random(seed). Shuffled rows lose the
    file's time stamps.
    """

    def __init__(self, path: str) -> None:
        self.path = str(path)

    @abstractmethod
    def read(self) -> Rows:
        """All rows in file order; raises InputError with file, line and column of a wrong value."""

    @property
    def has_times(self) -> bool:
        """True if the file says when each request arrives."""
        return self._whole.arrival_s is not None

    @cached_property
    def _whole(self) -> Rows:
        """All rows in order of arrival, beginning at 0 s, or in file order without time stamps."""
        rows = self.read()
        if rows.arrival_s is None or not len(rows):
            return rows
        order = np.argsort(rows.arrival_s, kind="stable")
        times = rows.arrival_s[order]
        return replace(rows.take(order), arrival_s=times - times[0])

    def rows(self, num_rows: int | None, seed: int, max_len: int | None = None) -> Rows:
        """num_rows shuffled rows of the file; with None all rows, in order of arrival if known."""
        rows = self._whole if max_len is None else self._whole.at_most(max_len)
        if not len(rows):
            limit = "" if max_len is None else f" of less than {max_len} tokens"
            raise InputError(
                key=self.path, problem=f"no row{limit}", remedy="raise it or give another file"
            )
        if num_rows is None:
            return rows
        check_least(0, num_rows=num_rows)
        order = [i % len(rows) for i in range(num_rows)]
        Random(seed).shuffle(order)
        return replace(rows.take(np.array(order, dtype=np.int64)), arrival_s=None)


def stream(seed: int, name: str) -> np.random.Generator:
    """A random generator for a named part of an experiment, independent of other names."""
    check_least(0, seed=seed)
    return np.random.default_rng([seed, *name.encode()])


def columns(pairs: Sequence[tuple[int, int]]) -> tuple[Column, Column]:
    """(prompt, output) pairs as two columns."""
    prompts, outputs = np.array(pairs, dtype=np.int64).T.copy()
    return prompts, outputs
