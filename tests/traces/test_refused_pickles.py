"""Pickles of lengths that are refused in one line with the name of the file."""

import pickle

import pytest
from refusals import check_refusal

from testbed.traces.csv_lengths import read_pairs


@pytest.mark.parametrize(
    "pairs",
    [
        pytest.param([(10**24, 5)], id="a prompt of 80 bits"),
        pytest.param([(5, 2**31)], id="an answer of 32 bits"),
        pytest.param([(0, 5)], id="no prompt"),
        pytest.param([([], 5)], id="a prompt without ids"),
        pytest.param([(-1, 5)], id="a negative length"),
        pytest.param([(True, 5)], id="a truth value"),
        pytest.param([(1.5, 5)], id="a part of a token"),
        pytest.param([(1, 2, 3)], id="three lengths"),
    ],
)
def test_lengths_of_a_pickle_are_refused(tmp_path, pairs):
    path = tmp_path / "lengths.pkl"
    path.write_bytes(pickle.dumps(pairs))
    check_refusal((str(path),), read_pairs, str(path))


@pytest.mark.parametrize("content", [b"", b"\x80\x04", b"(" * 10**6 + b".", b"I10\n."])
def test_a_damaged_pickle_is_refused(tmp_path, content):
    path = tmp_path / "lengths.pkl"
    path.write_bytes(content)
    check_refusal((str(path),), read_pairs, str(path))
