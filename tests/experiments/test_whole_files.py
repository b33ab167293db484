"""Files are whole or not there: new content appears at once, a failure leaves the old one."""

import json

import numpy as np
import pytest

from testbed.experiments.runs.whole_files import whole, write_cells, write_json


@pytest.fixture
def path(tmp_path):
    """A file with old content, alone in its folder."""
    path = tmp_path / "a.json"
    write_json(path, {"b": [1, None], "a": "é"})
    return path


def test_json_keeps_the_order_of_its_keys_and_every_letter(path):
    assert list(json.loads(path.read_text(encoding="utf-8")).items()) == [
        ("b", [1, None]),
        ("a", "é"),
    ]


def test_new_content_appears_at_the_end(path):
    with whole(path) as temporary:
        temporary.write_text("new")
        assert json.loads(path.read_text(encoding="utf-8"))["b"] == [1, None]
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError(28, "full"), ValueError("bad")])
def test_a_failure_leaves_the_old_content_and_nothing_else(path, error):
    def fail():
        with whole(path) as temporary:
            temporary.write_text("half")
            raise error

    before = path.read_bytes()
    with pytest.raises(type(error)):
        fail()
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_an_error_names_the_file_and_not_the_temporary_one(path):
    with pytest.raises(OSError) as caught, whole(path) as temporary:  # noqa: PT011
        raise OSError(28, "full", str(temporary))
    assert caught.value.filename == str(path)


def test_cells_of_a_table_are_exact_and_missing_ones_empty(tmp_path):
    path = tmp_path / "c.csv"
    columns = {"x": [1, None, 0.1], "y": np.array([float("nan"), 1 / 3, 2]), "z": ["a,b", "", True]}
    write_cells(path, columns)
    head, *rows = path.read_text().splitlines()
    assert head == "x,y,z"
    assert rows[0].startswith("1,")
    assert '"a,b"' in rows[0]
    assert float(rows[1].split(",")[1]) == 1 / 3
    assert float(rows[2].split(",")[0]) == 0.1
