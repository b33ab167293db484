"""Packed columns give back every number, in 64 bits, however few bits a block took."""

import numpy as np
import pytest

from testbed.engine import packed_rows
from testbed.engine.packed_rows import PackedRows, compact
from testbed.engine.totals import summed_products

EDGES = [0, -1, 2**15 - 1, 2**15, -(2**15), 2**31 - 1, 2**31, -(2**31), 2**63 - 1, 1 - 2**63]


@pytest.mark.parametrize("edge", EDGES)
def test_columns_give_back_every_number(edge, monkeypatch):
    monkeypatch.setattr(packed_rows, "BATCH", 3)
    rows = [(edge, 7), (1, 7), (2, 7), (edge, 7), (edge, 7), (edge, 7), (5, 8)]
    table = PackedRows("changing", "mostly_constant")
    for row in rows:
        table.append(row)
    columns = table.columns()
    assert [*zip(*(column.tolist() for column in columns.values()), strict=True)] == rows
    assert {column.dtype for column in columns.values()} == {np.dtype(np.int64)}


def test_small_numbers_take_fewer_bits():
    sizes = {n: compact(np.array([0, n])).dtype.itemsize for n in (1, 2**15 - 1, 2**15, 2**31)}
    assert sizes == {1: 2, 2**15 - 1: 2, 2**15: 4, 2**31: 8}


@pytest.mark.parametrize("largest", [0, 1 << 14, 1 << 25, 1 << 30, (1 << 62) - 1])
def test_sums_of_products_are_exact_whether_64_bits_hold_them_or_not(largest):
    values, durations_ps = np.array([largest, 3, -largest]), np.array([1 << 40, 7, 1])
    expected = largest * (1 << 40) + 21 - largest
    assert summed_products(values, durations_ps) == expected
