"""The artifact's pickle becomes a CSV that every figure can replay; nothing in it is executed."""

import os
import pickle
import subprocess
import sys

import pytest

from testbed.core.errors import InputError
from traces.artifact_lengths import read_pairs
from traces.csv_lengths import CsvLengths


class Harmful:
    """Runs a command where a careless reader would."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_pairs_keep_their_order(tmp_path):
    (tmp_path / "a.pkl").write_bytes(pickle.dumps([(7, 9), [3, 2], (5, 1)]))
    command = [sys.executable, "-m", "traces.artifact_lengths", str(tmp_path / "a.pkl"), str(tmp_path / "a.csv")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = CsvLengths(str(tmp_path / "a.csv")).read()
    assert "3 requests" in said
    assert (rows.prompt_len.tolist(), rows.output_len.tolist()) == ([7, 3, 5], [9, 2, 1])


def test_nothing_in_it_is_executed(tmp_path):
    (tmp_path / "a.pkl").write_bytes(pickle.dumps([Harmful(str(tmp_path / "harm"))]))
    with pytest.raises(InputError, match="mkdir"):
        read_pairs(str(tmp_path / "a.pkl"))
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    "content", [b"", b"no pickle", pickle.dumps({}), pickle.dumps([(1, 2, 3)]), pickle.dumps([("a", 1)])]
)
def test_anything_else_is_refused(tmp_path, content):
    (tmp_path / "a.pkl").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.pkl"):
        read_pairs(str(tmp_path / "a.pkl"))
