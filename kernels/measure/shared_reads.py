"""The time to read a shared block again: the sequences of a group run in parallel and find it in the L2 cache.

`testbed measure shared-reads` times one decode launch of OPT-13B's heads three times: without sharing, with sharing,
and with half the contexts, which gives the time per token. It prints, for our kernel and the paper's design, the time
of a repeated token as a share of the time of a first one.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from testbed.command_line import Parser
from testbed.kernels.launch.attention import paged_decode
from testbed.kernels.launch.paper_attention import paper_decode
from testbed.kernels.measure.fingerprint import fingerprint
from testbed.kernels.measure.timing import time_graph

NUM_HEADS, HEAD_SIZE, BLOCK_SIZE = 40, 128, 16


@dataclass(frozen=True, slots=True)
class Sharing:
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


def launch(kernel: str, table: np.ndarray) -> Callable[[], None]:
    """One decode launch over every token of these tables."""
    num_seqs, columns = table.shape
    size = (int(table.max()) + 1, NUM_HEADS, BLOCK_SIZE, HEAD_SIZE)
    k, v = (torch.randn(size, device="cuda", dtype=torch.float16) for _ in range(2))
    q = torch.randn(num_seqs, NUM_HEADS, HEAD_SIZE, device="cuda", dtype=torch.float16)
    out, tables = torch.empty_like(q), torch.from_numpy(table).cuda()
    length = columns * BLOCK_SIZE
    lens = torch.full((num_seqs,), length, dtype=torch.int32, device="cuda")
    if kernel == "paged":
        return lambda: paged_decode(out, q, k, v, tables, lens, max_context_len=length)
    k, v = k.view(size[0], NUM_HEADS, HEAD_SIZE // 8, BLOCK_SIZE, 8), v.view(size[0], NUM_HEADS, HEAD_SIZE, BLOCK_SIZE)
    return lambda: paper_decode(out, q, k, v, tables, lens, max_context_len=length)


def repeated_share(kernel: str, case: Sharing) -> tuple[float, float, float]:
    """Microseconds without and with sharing, and the time of a repeated token as a share of a first one."""
    apart, shared = case.tables(apart=True), case.tables(apart=False)
    apart_us = time_graph([launch(kernel, apart)]).median_us
    shared_us = time_graph([launch(kernel, shared)]).median_us
    half_us = time_graph([launch(kernel, apart[::2])]).median_us
    per_block_us = (apart_us - half_us) / (apart.size - apart[::2].size)
    repeated = case.shared * (apart.shape[0] - case.groups)
    return apart_us, shared_us, 1 - (apart_us - shared_us) / (per_block_us * repeated)


def main(argv: list[str]) -> None:
    """Print the table."""
    Parser("measure shared-reads", __doc__).parse_args(argv)
    print(fingerprint())
    print("kernel,case,apart_us,shared_us,repeated_price")
    for kernel in ("paged", "paper"):
        for case in CASES:
            apart_us, shared_us, share = repeated_share(kernel, case)
            print(f"{kernel},{case.name},{apart_us:.1f},{shared_us:.1f},{share:.2f}")
