"""fit-lengths on made-up lengths whose shape is known, and import-lengths on made-up pickles of the artifact's form."""

import hashlib
import json
import os
import pickle

import numpy as np
import pytest

from testbed.core.errors import InputError
from testbed.core.request import Rows
from testbed.experiments.commands import fit_lengths, import_lengths
from testbed.traces.csv_lengths import CsvLengths, write_lengths
from testbed.traces.fit_lengths import grid, quantiles, spearman
from testbed.traces.length_model import cell
from testbed.traces.synthetic import Fitted


def test_fit_keeps_means_and_joint_distribution(tmp_path):
    rng = np.random.default_rng(0)
    prompts = rng.integers(10, 500, 6000)
    rows = Rows(prompts, np.maximum(600 - prompts + rng.integers(-30, 30, 6000), 1))
    path, out = str(tmp_path / "l.csv"), str(tmp_path / "m.json")
    write_lengths(path, rows)
    fit_lengths.main([path, "--name", "mine", "--source", "made up", "--out", out])
    drawn = Fitted(out).rows(100_000, 0)
    assert drawn.prompt_len.mean() == pytest.approx(rows.prompt_len.mean(), rel=0.01)
    assert drawn.output_len.mean() == pytest.approx(rows.output_len.mean(), rel=0.01)
    assert spearman(drawn.prompt_len, drawn.output_len) == pytest.approx(
        spearman(rows.prompt_len, rows.output_len), abs=0.01
    )
    facts = json.loads((tmp_path / "m.json").read_text())
    assert (facts["name"], facts["source"], facts["num_rows"]) == ("mine", "made up", 6000)
    assert abs(facts["fit"]["mean_output"]["error_percent"]) < 1


def test_file_of_one_row_can_be_fitted(tmp_path):
    (tmp_path / "one.csv").write_text("input_tokens,output_tokens\n7,9\n")
    out = str(tmp_path / "one.json")
    fit_lengths.main([str(tmp_path / "one.csv"), "--out", out])
    assert set(Fitted(out).rows(9, 0).prompt_len.tolist()) == {7}


def test_bad_paths_are_refused_in_one_line(testbed, tmp_path):
    write_lengths(str(tmp_path / "l.csv"), Rows(np.array([3]), np.array([1])))
    for path, out, culprit in (("none.csv", "m.json", "none.csv: no such file"), ("l.csv", "no/m.json", "no/m.json")):
        code, _, error = testbed("fit-lengths", path, "--out", out)
        assert (code, error.count("\n")) == (2, 1)
        assert culprit in error


def test_quantiles_are_values_of_the_data():
    values = np.array([5, 1, 9, 9, 2])
    assert quantiles([values], np.array([0, 0.2, 0.5, 1.0])).rows.tolist() == [[1, 2, 5, 9]]
    table = quantiles([values, values + 100], grid(2, tail=()))
    assert table.lookup(np.array([0.0, 0.25, 0.5]), np.array([0, 0, 1])).tolist() == [1, 3, 105]


def test_every_rank_is_in_its_cell():
    assert cell(np.array([0, 0.5, 1.0]), np.array([0, 0.49, 0.5, 0.99])).tolist() == [0, 0, 1, 1]


class Harmful:
    """Runs a command where a careless reader would."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_imported_artifact_pairs_keep_their_order(tmp_path, capsys):
    (tmp_path / "a.pkl").write_bytes(pickle.dumps([(7, 9), [3, 2], ([11, 12, 13, 14, 15], [16])]))  # lengths, token ids
    import_lengths.main([str(tmp_path / "a.pkl"), str(tmp_path / "a.csv")])
    rows = CsvLengths(str(tmp_path / "a.csv")).read()
    reported = capsys.readouterr().out
    assert "3 requests, means of 5.00 and 4.00 tokens" in reported
    assert hashlib.sha256(b"7,9\n3,2\n5,1\n").hexdigest() + ": not rows that this project knows" in reported
    assert (rows.prompt_len.tolist(), rows.output_len.tolist()) == ([7, 3, 5], [9, 2, 1])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no pickle",
        pickle.dumps({}),
        pickle.dumps([]),
        pickle.dumps([(1, 2, 3)]),
        pickle.dumps([("a", 1)]),
        pickle.dumps([([True], 1)]),
    ],
)
def test_pickle_of_another_form_is_refused(tmp_path, content):
    (tmp_path / "a.pkl").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.pkl"):
        import_lengths.main([str(tmp_path / "a.pkl"), str(tmp_path / "a.csv")])


def test_import_executes_no_code_of_a_pickle(tmp_path):
    (tmp_path / "a.pkl").write_bytes(pickle.dumps([Harmful(str(tmp_path / "harm"))]))
    with pytest.raises(InputError, match="mkdir"):
        import_lengths.main([str(tmp_path / "a.pkl"), str(tmp_path / "a.csv")])
    assert not (tmp_path / "harm").exists()
