"""Standard output that cannot be written whole ends a command with one line and exit code 2."""

import os
import resource
import subprocess
import sys

import pytest
from wrong_files import check_one_line

COMMAND = [sys.executable, "-m", "testbed.experiments.cli.main"]
LIMIT = 600  # bytes of a file, as on a disk that is full then


def called(words, out, *, unbuffered, limit=None):
    """The exit code and the errors of a command whose output goes to a file."""
    environment = {key: text for key, text in os.environ.items() if key != "PYTHONUNBUFFERED"}
    environment |= {"PYTHONUNBUFFERED": "1"} if unbuffered else {}
    environment |= {"PYTHONDONTWRITEBYTECODE": "1"}  # compiled modules would be cut off too

    def limited():
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    with open(out, "wb") as file:
        done = subprocess.run(
            [*COMMAND, *words],
            stdout=file,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            preexec_fn=limited,
        )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("words", "unbuffered"),
    [
        (["list", "policy"], False),
        (["list", "policy"], True),
        (["--help"], True),
        (["list", "policy", "--json"], False),
    ],
)
def test_output_that_the_disk_takes_in_part_is_an_error(words, unbuffered, tmp_path):
    code, errors = called(words, tmp_path / "out", unbuffered=unbuffered, limit=LIMIT)
    check_one_line(code, errors)
    assert (tmp_path / "out").stat().st_size == LIMIT


@pytest.mark.parametrize("words", [["--version"], ["list", "gpu"]])
def test_output_that_the_disk_does_not_take_is_an_error(words):
    check_one_line(*called(words, "/dev/full", unbuffered=True))


def test_a_whole_output_has_no_other_lines_without_a_buffer(tmp_path):
    results = [
        called(["list", "policy"], tmp_path / str(unbuffered), unbuffered=unbuffered)
        for unbuffered in (False, True)
    ]
    assert results == [(0, "")] * 2
    outputs = [(tmp_path / str(unbuffered)).read_bytes() for unbuffered in (False, True)]
    assert outputs[0] == outputs[1] != b""
