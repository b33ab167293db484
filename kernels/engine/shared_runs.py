"""Neighbours in a batch of decodes that begin with the same blocks, which one launch reads."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.kernels.engine.layout import Ints
from testbed.kernels.launch.decode_plan import TILE


class Run(NamedTuple):
    """Decodes first..last - 1 of a batch, and the tokens that all of them begin with."""

    first: int
    last: int
    tokens: int

    @property
    def repeated(self) -> int:
        """Tokens that need not be read again."""
        return (self.last - self.first - 1) * self.tokens


NO_RUN = Run(0, 0, 0)


def shared_run(tables: NDArray[np.int32], context_lens: Ints, block_size: int) -> Run:
    """The run that saves the most reads. tables: [num_seqs, width]. A run's tokens are whole tiles
    of the kernels; a decode's newest token is not among them.
    """
    step = max(1, TILE // block_size)  # blocks of a tile
    common = _common_blocks(tables, (context_lens - 1) // block_size) // step * step
    best = NO_RUN
    for blocks in np.unique(common[common > 0]).tolist():
        inside = np.concatenate([[False], common >= blocks, [False]])
        edges = np.flatnonzero(inside[1:] != inside[:-1]).reshape(-1, 2)
        first, last = edges[np.argmax(edges[:, 1] - edges[:, 0])].tolist()
        best = max(best, Run(first, last + 1, blocks * block_size), key=lambda run: run.repeated)
    return best


def _common_blocks(tables: NDArray[np.int32], most: Ints) -> Ints:
    """The number of entries that each table and the next begin with, at most `most` of either."""
    same = tables[1:] == tables[:-1]
    equal = np.where(same.all(axis=1), same.shape[1], same.argmin(axis=1))
    common: Ints = np.minimum(equal, np.minimum(most[1:], most[:-1]))
    return common
