"""The fit itself, on made-up lengths whose shape is known."""

import json

import numpy as np
import pytest

from testbed.core.request import Rows
from traces.csv_lengths import write_lengths
from traces.fit import main
from traces.fit_alpaca import at_same_rank, convert
from traces.fit_pairs import spearman
from traces.quantiles import QuantileTable, cell, grid, order_statistics
from traces.synthetic import Fitted


@pytest.fixture
def length_file(tmp_path):
    rng = np.random.default_rng(0)
    prompts = rng.integers(10, 500, 6000)
    rows = Rows(prompts, np.maximum(600 - prompts + rng.integers(-30, 30, 6000), 1))
    write_lengths(str(tmp_path / "l.csv"), rows)
    return str(tmp_path / "l.csv"), rows


def test_a_fit_keeps_means_and_a_strong_joint_shape(tmp_path, length_file):
    path, rows = length_file
    out = str(tmp_path / "m.json")
    assert main(["lengths", path, "--name", "mine", "--source", "made up", "--out", out]) == 0
    drawn = Fitted(out).rows(100_000, 0)
    assert drawn.prompt_len.mean() == pytest.approx(rows.prompt_len.mean(), rel=0.01)
    assert drawn.output_len.mean() == pytest.approx(rows.output_len.mean(), rel=0.01)
    assert spearman(drawn.prompt_len, drawn.output_len) == pytest.approx(
        spearman(rows.prompt_len, rows.output_len), abs=0.01
    )
    facts = json.loads((tmp_path / "m.json").read_text())
    assert (facts["name"], facts["source"], facts["num_rows"]) == ("mine", "made up", 6000)
    assert abs(facts["fit"]["mean_output"]["error_percent"]) < 1


def test_a_file_of_one_row_fits_too(tmp_path):
    (tmp_path / "one.csv").write_text("input_tokens,output_tokens\n7,9\n")
    out = str(tmp_path / "one.json")
    assert main(["lengths", str(tmp_path / "one.csv"), "--out", out]) == 0
    assert set(Fitted(out).rows(9, 0).prompt_len.tolist()) == {7}


def test_bad_input_and_output_paths_give_one_line_and_2(tmp_path, length_file, capsys):
    assert main(["lengths", str(tmp_path / "none.csv"), "--out", str(tmp_path / "m.json")]) == 2
    assert main(["lengths", length_file[0], "--out", str(tmp_path / "no" / "m.json")]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "none.csv: no such file" in first
    assert "no/m.json" in second


def test_quantiles_are_values_that_occur():
    values = np.array([5, 1, 9, 9, 2])
    assert order_statistics(values, np.array([0, 0.2, 0.5, 1.0])).tolist() == [1, 2, 5, 9]
    table = QuantileTable.of([values, values + 100], grid(2, tail=()))
    assert table.lookup(np.array([0.0, 0.25, 0.5]), np.array([0, 0, 1])).tolist() == [1, 3, 105]


def test_every_rank_falls_in_its_cell():
    assert cell(np.array([0, 0.5, 1.0]), np.array([0, 0.49, 0.5, 0.99])).tolist() == [0, 0, 1, 1]


def test_lengths_move_to_the_same_rank_of_a_larger_sample():
    assert at_same_rank(np.array([3, 1, 2]), np.arange(1, 31)).tolist() == [26, 6, 16]


def test_conversion_follows_the_curve_of_known_texts():
    llama = np.arange(10, 650)
    assert convert(np.array([1, 100, 1300]), llama, llama * 2).tolist() == [2, 200, 2600]
