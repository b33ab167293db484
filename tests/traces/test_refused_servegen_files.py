"""ServeGen folders that are refused in one line: the client's file, the line and what is wrong."""

import pytest
from refusals import check_refusal

from testbed.traces.servegen import ServeGenFolder

RATES = "0,2.0,1.0,Gamma,0.5,1.0\n600,0,0,,0,0\n1200,1.0,2.0,Weibull,0.5,3.4\n"
LENGTHS = (
    '{"0": {"input_tokens": "{10: 0.5, 20: 0.5}", "output_tokens": "{3: 1.0}"},'
    ' "1200": {"input_tokens": "{30: 1.0}", "output_tokens": "{0: 0.5, 4: 0.5}"}}'
)
SHARES = ("shares must be finite and at least 0",)
IN_ORDER = ("do not follow each other in time",)


def inputs(shares):
    """Lengths of a client whose prompts have these shares."""
    return f'{{"0": {{"input_tokens": "{{{shares}}}", "output_tokens": "{{1: 1}}"}}}}'


def check_folder_is_refused(folder, rates, lengths, words):
    (folder / "chunk-3-trace.csv").write_text(rates)
    (folder / "chunk-3-dataset.json").write_text(lengths)
    reader = ServeGenFolder(str(folder))
    check_refusal((str(folder), *words), lambda: reader.rows(None, 0))


@pytest.mark.parametrize(
    ("rates", "words"),
    [
        pytest.param(
            "0,1\n", ("chunk-3-trace.csv", "line 1", "needs start, rate"), id="two columns"
        ),
        pytest.param("0,1,1,Pareto,1,1\n", ("Pareto gaps",), id="an unknown distribution"),
        pytest.param(
            "0,0,0,,0,0\n", ("no client sends from 0 s to 3600 s",), id="nothing in the interval"
        ),
        pytest.param(
            "0,1,1,Gamma,1e-300,1\n", ("Gamma gaps from 0 s", "shape 1e-300"), id="no shape"
        ),
        pytest.param("nan,1,1,Gamma,1,1\n", ("Gamma gaps from nan s",), id="a start that is nan"),
        pytest.param("600,1,1,Gamma,1,1\n0,1,1,Gamma,1,1\n", IN_ORDER, id="out of order"),
        pytest.param("0,9,1,Gamma,1,1\n0,9,1,Gamma,1,1\n", IN_ORDER, id="the same time twice"),
    ],
)
def test_rates_of_a_client_are_refused(tmp_path, rates, words):
    check_folder_is_refused(tmp_path, rates, LENGTHS, words)


@pytest.mark.parametrize(
    ("lengths", "words"),
    [
        pytest.param('{"0": {"input_tokens": "{}"}}', ("not ServeGen's form",), id="no outputs"),
        pytest.param("[]", ("not ServeGen's form",), id="a list"),
        pytest.param(inputs("1: -1"), SHARES, id="a negative share"),
        pytest.param(inputs("1: 1e999"), SHARES, id="an infinite share"),
        pytest.param(inputs("1: 0.0"), ("shares must be finite",), id="shares of nothing"),
        pytest.param(inputs(f"{2**31}: 1"), ("lengths from 0 to",), id="a length of 32 bits"),
        pytest.param(inputs(f"{10**24}: 1"), ("lengths from 0 to",), id="a length of 80 bits"),
        pytest.param(inputs("1.7: 1"), ("not ServeGen's form", "1.7"), id="a part of a token"),
        pytest.param(inputs("(" * 9999), ("not ServeGen's form",), id="nested too deeply"),
    ],
)
def test_lengths_of_a_client_are_refused(tmp_path, lengths, words):
    check_folder_is_refused(tmp_path, RATES, lengths, words)


def test_folder_without_clients_is_refused(tmp_path):
    check_refusal(
        (str(tmp_path), "no file chunk"), lambda: ServeGenFolder(str(tmp_path)).rows(None, 0)
    )


@pytest.mark.parametrize("client", ["x", "", "1.5", "²"])
def test_client_without_a_number_is_refused(tmp_path, client):
    (tmp_path / f"chunk-{client}-trace.csv").write_text(RATES)
    words = (f"chunk-{client}-trace.csv", "no number")
    check_refusal(words, lambda: ServeGenFolder(str(tmp_path)).rows(None, 0))


@pytest.mark.parametrize("options", [{"start_s": -1}, {"duration_s": 0}])
def test_interval_of_negative_start_or_no_duration_is_refused(options):
    check_refusal(("at least 0", "above 0"), ServeGenFolder, "folder", **options)
