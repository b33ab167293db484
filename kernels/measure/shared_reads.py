"""The time to read a shared block again: the sequences of a group run in parallel and find it in the L2 cache.

`testbed measure shared-reads` times one decode launch of OPT-13B's heads three times: without sharing, with sharing,
and with half the contexts, which gives the time per token. It prints, for our kernel and the paper's design, the time
of a repeated token as a share of the time of a first one.
"""

from argparse import Namespace
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from testbed.kernels.measure.bench_inputs import DecodeInputs, Pools
from testbed.kernels.measure.table import Measurement
from testbed.kernels.measure.timing import time_graph
from testbed.kernels.verify.random_batches import Shape

SHAPE = Shape(40, 40, 128)


class Sharing(NamedTuple):
    """`groups` groups of `width` sequences, with `shared` common blocks per group and `own` blocks per sequence."""

    name: str
    groups: int
    width: int
    shared: int
    own: int

    def tables(self, *, apart: bool) -> np.ndarray:
        """Shuffled block tables [sequences, blocks]; with `apart` no block is shared."""
        rows, columns = self.groups * self.width, self.shared + self.own
        table = np.arange(rows * columns).reshape(rows, columns)
        if not apart:
            table[:, : self.shared] = np.repeat(table[:: self.width, : self.shared], self.width, axis=0)
        return np.random.default_rng(0).permutation(rows * columns)[table].astype(np.int32)


CASES = (
    Sharing("beams of 6", 76, 6, 3, 2),
    Sharing("beams of 4", 100, 4, 3, 2),
    Sharing("prefix of 80", 1, 234, 5, 3),
    Sharing("prefix of 336", 1, 234, 21, 3),
)


def launch_us(pools: Pools, kernel: str, table: np.ndarray) -> float:
    """One decode launch over every token of these tables."""
    inputs = DecodeInputs(pools, SHAPE, [table.shape[1] * SHAPE.block_size] * len(table))
    inputs.tables = torch.from_numpy(table.copy()).cuda()
    return time_graph([inputs.paged()[0] if kernel == "paged" else inputs.paper()[0]]).median_us


def repeated_share(pools: Pools, kernel: str, case: Sharing) -> tuple[float, float, float]:
    """Microseconds without and with sharing, and the time of a repeated token as a share of a first one."""
    apart = case.tables(apart=True)
    apart_us, half_us = launch_us(pools, kernel, apart), launch_us(pools, kernel, apart[::2])
    shared_us = launch_us(pools, kernel, case.tables(apart=False))
    per_block_us = (apart_us - half_us) / (apart.size - apart[::2].size)
    repeated = case.shared * (len(apart) - case.groups)
    return apart_us, shared_us, 1 - (apart_us - shared_us) / (per_block_us * repeated)


def rows(options: Namespace) -> Iterator[tuple[str | float, ...]]:
    """A row for each kernel and case."""
    pools = Pools(8 << 30)
    for kernel in ("paged", "paper"):
        for case in CASES:
            yield kernel, case.name, *repeated_share(pools, kernel, case)


MEASUREMENT = Measurement(__doc__, "kernel,case,apart_us,shared_us,repeated_price", rows)
