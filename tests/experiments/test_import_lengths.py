"""import-lengths on made-up pickles of the artifact's form."""

import hashlib
import os
import pickle

import pytest
from refusals import refuses

from testbed.experiments.commands.imports import import_lengths
from testbed.traces.csv_lengths import CsvLengths


class Harmful:
    """Runs a command where a careless reader would."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_imported_artifact_pairs_keep_their_order(tmp_path, capsys):
    (tmp_path / "a.pkl").write_bytes(pickle.dumps([(7, 9), [3, 2], ([11, 12, 13, 14, 15], [16])]))  # lengths, token ids
    import_lengths([str(tmp_path / "a.pkl"), str(tmp_path / "a.csv")])
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
    refuses(r"a\.pkl", import_lengths, [str(tmp_path / "a.pkl"), str(tmp_path / "a.csv")])


def test_import_executes_no_code_of_a_pickle(tmp_path):
    (tmp_path / "a.pkl").write_bytes(pickle.dumps([Harmful(str(tmp_path / "harm"))]))
    refuses("mkdir", import_lengths, [str(tmp_path / "a.pkl"), str(tmp_path / "a.csv")])
    assert not (tmp_path / "harm").exists()
