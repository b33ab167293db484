"""The command line, called in this process, in an empty folder."""

import sys
from pathlib import Path

import pytest

from experiments.commands.cli import dispatch

HERE = Path(__file__).parent


@pytest.fixture
def testbed(tmp_path, monkeypatch, capsys):
    """Call `testbed ARGUMENTS`: the exit code, and what went to standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("PYTHONSAFEPATH", "1")  # as the command sets it; taken back afterwards

    def call(*arguments):
        code = dispatch(list(arguments))
        return code, *capsys.readouterr()

    return call
