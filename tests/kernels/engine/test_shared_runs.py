"""Which decodes of a batch have their first tokens read once."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

from testbed.kernels.engine.shared_runs import NO_RUN, Run, shared_run


def run_of(*tables, lens, block_size=16):
    """The run of these tables, padded with zeros as a launch has them."""
    width = max(map(len, tables))
    rows = [[*table, *[0] * (width - len(table))] for table in tables]
    return shared_run(np.array(rows, np.int32), np.array(lens), block_size)


def test_neighbours_that_begin_alike_are_a_run():
    run = run_of([7, 8, 1], [7, 8, 2], [7, 8, 3], [4, 8, 5], lens=[40, 41, 42, 43])
    assert run == Run(first=0, last=3, tokens=32)
    assert run.repeated == 64


def test_the_run_that_saves_most_is_taken():
    """Three that share a block repeat two; the first two share three blocks, and repeat three."""
    assert run_of([5, 6, 7, 1], [5, 6, 7, 2], [5, 9, 9, 3], lens=[60] * 3) == Run(0, 2, 48)
    assert run_of([5, 6, 1], [5, 6, 2], [5, 9, 3], [5, 8, 4], lens=[40] * 4) == Run(0, 4, 16)


def test_the_newest_token_is_not_shared():
    """A block that two contexts end in together is written by both."""
    assert run_of([7, 8], [7, 8], lens=[32, 32]) == Run(0, 2, 16)
    assert run_of([7, 8], [7, 8], lens=[33, 33]) == Run(0, 2, 32)


def test_padding_is_not_shared():
    assert run_of([1], [2], [0, 0, 3], lens=[1, 1, 48]) == NO_RUN
    assert run_of([0], [0], lens=[1, 0]) == NO_RUN


def test_small_blocks_are_shared_by_whole_tiles():
    same = list(range(9))
    assert run_of([*same, 20], [*same, 21], lens=[40, 40], block_size=4) == Run(0, 2, 32)
    assert run_of([1, 2, 3], [1, 2, 4], lens=[12, 12], block_size=4) == NO_RUN


def test_one_decode_is_no_run():
    assert run_of([1, 2], lens=[30]) == NO_RUN
