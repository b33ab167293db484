"""The output tokens that a request declares, beside those that it generates."""

import numpy as np
import pytest
from refusals import check_refusal

import testbed as front
from testbed.core.errors import InputError
from testbed.core.request import Request, Rows, Workload
from testbed.run.config import WorkloadConfig
from testbed.run.workload import with_limits
from testbed.traces.csv_lengths import CsvLengths, write_lengths

ROWS = Rows(np.array([10, 20]), np.array([4, 50]))


@pytest.mark.parametrize(
    ("declared", "limits"),
    [(None, None), (30, [30, 50]), ("1.5x", [6, 75]), ("4x", [16, 80]), ("model", [90, 80])],
)
def test_a_run_declares_a_number_a_factor_or_what_the_model_leaves(declared, limits):
    rows = with_limits(ROWS, WorkloadConfig(max_new_tokens=declared), max_len=100)
    assert limits == (None if rows.max_new_tokens is None else rows.max_new_tokens.tolist())


def test_schedulers_see_what_is_declared_and_not_what_is_generated():
    rows = with_limits(ROWS, WorkloadConfig(max_new_tokens="2x"), max_len=1000)
    incoming = [request.incoming for request in Workload(rows, np.array([0, 0]))]
    assert [request.max_new_tokens for request in incoming] == [8, 100]
    assert not hasattr(incoming[0], "output_len")


def test_a_column_of_a_trace_declares_too(tmp_path):
    path = tmp_path / "lengths.csv"
    path.write_text("input_tokens,output_tokens,max_new_tokens\n8,3,5\n9,1,1\n")
    rows = CsvLengths(str(path)).read()
    assert rows.max_new_tokens.tolist() == [5, 1]
    again = tmp_path / "again.csv"
    write_lengths(str(again), rows)
    assert CsvLengths(str(again)).read().max_new_tokens.tolist() == [5, 1]


@pytest.mark.parametrize("wrong", ["0.5x", "x", "twice", "1.5"])
def test_other_words_are_refused(wrong):
    check_refusal(("workload.max_new_tokens", wrong), WorkloadConfig, max_new_tokens=wrong)


def test_a_declared_output_below_the_true_one_is_refused():
    request = Request(1, 0, prompt_len=8, output_len=4, max_new_tokens=3)
    check_refusal(("request 1", "max_new_tokens", "at least 4"), front.simulate, trace=[request])
    with pytest.raises(InputError, match="max_new_tokens=3"):
        Rows(np.array([8]), np.array([4]), max_new_tokens=np.array([3]))


def test_a_column_and_an_option_are_refused_together():
    declared = WorkloadConfig(max_new_tokens=9)
    with_column = Rows(np.array([8]), np.array([4]), max_new_tokens=np.array([4]))
    check_refusal(("workload.max_new_tokens=9", "column"), with_limits, with_column, declared, 99)
