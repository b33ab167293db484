"""The command line, called in this process, in an empty folder; or in a process of its own."""

import json
import shlex
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
import yaml
from browser import WIDE, chromium, new_tab
from import_fixtures import profile  # noqa: F401 (a fixture)
from refusals import says_no_start
from remedies import check_ways_out
from tiny_run import tiny_overrides
from wrong_files import check_one_line, refused, wrong_files  # noqa: F401 (fixtures)

from testbed import experiments
from testbed.experiments.cli.main import main
from testbed.experiments.runs import progress

EXAMPLES = Path(experiments.__file__).parent / "examples"


@pytest.fixture(autouse=True)
def as_in_a_pipe(monkeypatch):
    """Tables are as wide as in a pipe."""
    monkeypatch.delenv("COLUMNS", raising=False)


class CommandLine:
    """`testbed ARGUMENTS`, called in this process: a call answers the exit code, and what went to
    standard output and standard error.
    """

    def __init__(self, capsys):
        self._capsys = capsys

    def __call__(self, *arguments):
        self._capsys.readouterr()  # what fixtures have printed
        try:
            code = main(list(arguments))
        except SystemExit as end:  # help leaves by itself
            code = end.code or 0
        return code, *self._capsys.readouterr()

    def done(self, *arguments):
        """The output of a call that ends well, without complaints."""
        code, output, error = self(*arguments)
        assert (code, without_displaced(error)) == (0, ""), error
        return output

    def refused(self, *arguments):
        """The one line of a call that is refused, and prints nothing else."""
        line = self._line(arguments, expected=2)
        assert not says_no_start(line)
        return line

    def no(self, *arguments):
        """The one line of a call whose answer is no, which prints nothing else."""
        return self._line(arguments, expected=1)

    def _line(self, arguments, expected):
        code, output, error = self(*arguments)
        error = without_displaced(error)
        check_one_line(code, error, expected=expected)
        check_ways_out(arguments, error)
        assert output == ""
        return error


def without_displaced(error):
    """Standard error without the notes on words that a test gives anew, in place of its first."""
    lines = error.splitlines(keepends=True)
    return "".join(line for line in lines if not line.endswith(": the last one counts\n"))


@pytest.fixture
def testbed(tmp_path, monkeypatch, capsys):
    """The command line in an empty folder."""
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("PYTHONSAFEPATH", "1")  # as the command sets it; restored afterwards
    monkeypatch.setattr(progress, "REPORT_S", 1e6)  # a slow machine gets no more than a fast one
    yield CommandLine(capsys)
    for name in set(sys.modules) - before:  # another test's plug-in may have the same name
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(f"{tmp_path}/"):
            del sys.modules[name]


@dataclass
class FinishedRun:
    """A run that went well: its folder, what it printed, and what it wrote when it ended."""

    folder: Path
    output: str
    config_text: str
    summary: dict

    @cached_property
    def config(self):
        """The values of config.yaml, which few tests read."""
        return yaml.load(self.config_text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@pytest.fixture
def run(testbed, tmp_path):
    """Call `testbed run LINE` for a folder, without plots and tables unless the line asks for
    them.
    """

    def call(line, folder="out"):
        outputs = [] if "outputs=" in line else ["outputs=summary"]
        output = testbed.done(
            "run", "--again", *shlex.split(line), *outputs, f"hydra.run.dir={folder}"
        )
        path = tmp_path / folder
        config = (path / "config.yaml").read_text()
        return FinishedRun(path, output, config, json.loads((path / "summary.json").read_text()))

    return call


@pytest.fixture(scope="session")
def command():
    """The words that start `testbed` in a process of its own."""
    return [sys.executable, "-m", "testbed.experiments.cli.main"]


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium."""
    with chromium() as browser:
        yield browser


@pytest.fixture
def width():
    """Of the screen, in pixels; a test may have another one as parameter."""
    return WIDE


@pytest.fixture
def web_page(browser, width):
    """A tab of its own in the browser."""
    page = new_tab(browser, width)
    yield page
    page.context.close()


@pytest.fixture
def four_requests(monkeypatch):
    """Shorten the runs of a `testbed.check` of which words and answers are tested."""
    monkeypatch.setattr("testbed.checks.fast_and_slow.NUM_REQUESTS", 4)


@pytest.fixture
def tiny(testbed):
    """Options of the run of seven requests on ten blocks, in the folder of the test."""
    return tiny_overrides(Path("tiny.csv"), blocks=10)
