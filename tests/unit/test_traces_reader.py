"""The recipes that every trace shares: order, filter, shuffle, draws."""

import gzip
from itertools import cycle, islice
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.errors import InputError
from testbed.core.request import Rows
from traces.csv_lengths import CsvLengths, write_lengths
from traces.distributions import Fixed, LogNormal, Uniform, Zipf
from traces.reader import FileTrace, columns
from traces.synthetic import Fitted, Synthetic

CSV = "input_tokens,output_tokens\n21,518\n8,66\n1900,500\n5,7\n"


@pytest.fixture
def csv_file(tmp_path):
    path = tmp_path / "lengths.csv"
    path.write_text(CSV)
    return str(path)


def pairs(rows):
    return list(zip(rows.prompt_len.tolist(), rows.output_len.tolist(), strict=True))


class InMemory(FileTrace):
    """A file trace whose rows are at hand: all a plug-in of another format must bring is read()."""

    def __init__(self, given_pairs):
        super().__init__("in memory")
        self.given_pairs = given_pairs

    def read(self):
        return Rows(*columns(self.given_pairs))


def test_whole_file_in_order(csv_file):
    rows = CsvLengths(csv_file).rows(None, seed=3)
    assert pairs(rows) == [(21, 518), (8, 66), (1900, 500), (5, 7)]
    assert rows.arrival_s is None


def test_recipe_filters_then_takes_repeats_and_shuffles(csv_file):
    expected = [(21, 518), (8, 66), (5, 7), (21, 518), (8, 66)]
    Random(7).shuffle(expected)
    assert pairs(CsvLengths(csv_file).rows(5, seed=7, max_len=2048)) == expected


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1),
    st.integers(0, 90),
    st.integers(0, 2**32),
    st.integers(2, 99),
)
def test_recipe_is_the_protocol_s_word_for_word(given_pairs, num_rows, seed, max_len):
    filtered = [(prompt, output) for prompt, output in given_pairs if prompt + output < max_len]
    trace = InMemory(given_pairs)
    if not filtered:
        with pytest.raises(InputError, match="no row of less than"):
            trace.rows(num_rows, seed, max_len)
        return
    expected = list(islice(cycle(filtered), num_rows))
    Random(seed).shuffle(expected)
    assert pairs(trace.rows(num_rows, seed, max_len)) == expected


def test_filter_keeps_only_shorter_rows(csv_file):
    assert pairs(CsvLengths(csv_file).rows(None, 0, max_len=74)) == [(5, 7)]
    with pytest.raises(InputError, match=r"lengths\.csv: no row of less than 12 tokens"):
        CsvLengths(csv_file).rows(None, 0, max_len=12)


def test_time_stamps_give_the_order_and_start_at_zero(tmp_path):
    path = tmp_path / "timed.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n7.5,1,2\n5,3,4\n6,5,6\n")
    rows = CsvLengths(str(path)).rows(None, 0)
    assert pairs(rows) == [(3, 4), (5, 6), (1, 2)]
    assert rows.arrival_s.tolist() == [0.0, 1.0, 2.5]
    assert CsvLengths(str(path)).rows(3, 0).arrival_s is None


@pytest.mark.parametrize("name", ["kept.csv", "kept.csv.gz"])
def test_written_lengths_read_back(tmp_path, name):
    path = str(tmp_path / name)
    kept = Rows(np.array([3, 4]), np.array([5, 6]), arrival_s=np.array([0.0, 1.25]))
    write_lengths(path, kept)
    again = CsvLengths(path).rows(None, 0)
    assert pairs(again) == pairs(kept)
    assert again.arrival_s.tolist() == [0.0, 1.25]
    assert name.endswith(".gz") == (Path(path).read_bytes()[:2] == gzip.compress(b"")[:2])


def test_other_column_names(tmp_path):
    path = tmp_path / "named.csv"
    path.write_text("p,x,o\n1,9,2\n")
    assert pairs(CsvLengths(str(path), input_column="p", output_column="o").rows(None, 0)) == [(1, 2)]


DRAWN = [
    Fitted("sharegpt"),
    Fitted("alpaca", prefix=80),
    Synthetic(Fixed(100), Uniform(1, 50)),
    Synthetic(LogNormal(median=60, sigma=1.2, high=2000), Zipf(exponent=1.1, high=1000, low=4)),
]


@pytest.mark.parametrize("trace", DRAWN, ids=lambda trace: trace.name)
def test_draws_repeat_by_seed_and_stay_below_the_limit(trace):
    rows = trace.rows(2000, seed=5, max_len=300)
    assert len(rows) == 2000
    assert (rows.prompt_len + rows.output_len < 300).all()
    assert pairs(rows) == pairs(trace.rows(2000, seed=5, max_len=300))
    assert pairs(rows) != pairs(trace.rows(2000, seed=6, max_len=300))
    assert len(trace.rows(0, seed=0)) == 0


@pytest.mark.parametrize("max_len", [None, 300])
def test_a_longer_fitted_run_begins_with_the_shorter_one(max_len):
    trace = Fitted("sharegpt")
    assert pairs(trace.rows(500, 1, max_len)) == pairs(trace.rows(900, 1, max_len))[:500]


def test_prefix_is_part_of_the_prompt_and_is_named():
    plain, prefixed = Fitted("alpaca").rows(100, 0), Fitted("alpaca", prefix=341).rows(100, 0)
    assert (prefixed.prompt_len == plain.prompt_len + 341).all()
    assert (plain.prefix, prefixed.prefix) == (0, 341)


def test_simple_distributions_have_their_shapes():
    rng = np.random.default_rng(0)
    uniform = Uniform(3, 5).draw(30_000, rng)
    assert np.bincount(uniform, minlength=6)[3:] / 30_000 == pytest.approx([1 / 3] * 3, abs=0.02)
    zipf = Zipf(exponent=1.0, high=3).draw(30_000, rng)
    assert np.bincount(zipf, minlength=4)[1:] / 30_000 == pytest.approx([6 / 11, 3 / 11, 2 / 11], abs=0.02)
    assert np.median(LogNormal(median=60, sigma=1.2, high=2000).draw(30_000, rng)) == pytest.approx(60, rel=0.05)
    assert Fixed(9).draw(2, rng).tolist() == [9, 9]


@pytest.mark.parametrize(
    ("ask", "culprit"),
    [
        (lambda: Fitted("sharegpt").rows(None, 0), "sharegpt: a drawn trace has no end"),
        (lambda: Fitted("sharegpt").rows(-1, 0), "num_rows is -1"),
        (lambda: Fitted("sharegpt").rows(1, -1), "seed is -1"),
        (lambda: Fitted("share").rows(1, 0), "no length model 'share'; embedded are .*alpaca.*sharegpt"),
        (lambda: Fitted("alpaca", prefix=-1), "prefix is -1"),
        (lambda: Synthetic(Fixed(100), Fixed(100)).rows(1, 0, max_len=200), "hardly any row is shorter than 200"),
        (lambda: Fixed(0), r"Fixed\(length=0\): length must be at least 1"),
        (lambda: Uniform(5, 4), "1 <= low <= high"),
        (lambda: Zipf(-1, 4), "exponent >= 0"),
        (lambda: LogNormal(0, 1, 5), "median"),
    ],
)
def test_bad_settings_name_the_culprit(ask, culprit):
    with pytest.raises(InputError, match=culprit) as caught:
        ask()
    assert "\n" not in str(caught.value)
