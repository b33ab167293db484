"""The console command ends its process at once, after everything that is to happen at the end."""

import subprocess
import sys

import pytest

from testbed.experiments.cli.main import version

CALL = (
    "import atexit, sys; from testbed.experiments.cli import main; sys.argv = ['testbed', {!r}]; "
)
USUAL_END = "atexit.register(print, 'the usual end'); "  # called last, if it is called
OF_A_LIBRARY = (
    "run = main.main; main.main = lambda: atexit.register(print, 'a library ends') and run(); "
)


def output_of(code, word="--version", expected=0):
    done = subprocess.run(
        [sys.executable, "-c", CALL.format(word) + code], capture_output=True, text=True
    )
    assert done.returncode == expected, done.stderr
    return done.stdout.splitlines()


def test_what_libraries_do_at_the_end_is_done():
    lines = [version(), "a library ends"]
    assert output_of(f"{USUAL_END}{OF_A_LIBRARY}main.console()") == lines


@pytest.mark.parametrize("watch", ["sys.settrace", "sys.setprofile"])
def test_a_watched_process_ends_as_usual(watch):
    code = f"{USUAL_END}{watch}(lambda *event: None); main.console()"
    assert output_of(code) == [version(), "the usual end"]


def test_an_exception_ends_as_usual():
    code = f"{USUAL_END}main.main = lambda: 1 / 0; main.console()"
    assert output_of(code, expected=1) == ["the usual end"]


def test_the_exit_code_is_that_of_the_command():
    assert output_of("main.console()", "no-such-command", expected=2) == []
