"""Files are whole or not there: new content appears at once, a failure leaves the old one."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from threading import Thread

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


def test_an_error_of_a_missing_folder_names_the_file(tmp_path):
    path = tmp_path / "missing" / "a.csv"
    with pytest.raises(FileNotFoundError) as caught:
        write_cells(path, {"x": [1]})
    assert caught.value.filename == str(path)


def test_a_pipe_gets_the_content_and_stays(tmp_path):
    pipe, received = tmp_path / "pipe.json", []
    os.mkfifo(pipe)
    reader = Thread(target=lambda: received.append(pipe.read_text()))
    reader.start()
    write_json(pipe, [1])
    reader.join()
    assert json.loads(received[0]) == [1]
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_full_device_is_an_error_and_stays():
    device = Path("/dev/full")
    with pytest.raises(OSError) as caught:  # noqa: PT011
        write_json(device, [1])
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(device)
    assert device.is_char_device()


def test_standard_output_may_be_a_file_by_name():
    code = "from testbed.experiments.runs.whole_files import *; write_json(Path('/dev/stdout'), 1)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (shown.stdout, shown.stderr) == ("1\n", "")


def test_a_link_is_replaced_and_what_it_names_stays(path):
    before = path.read_bytes()
    link = path.with_name("link.json")
    link.symlink_to(path.name)
    write_json(link, [1])
    assert not link.is_symlink()
    assert json.loads(link.read_text()) == [1]
    assert path.read_bytes() == before


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
