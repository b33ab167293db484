"""Usage errors, interrupts and faults of a command: one line each, with its exit code."""

import signal
import sys

import pytest
from refusals import check_words

from testbed.experiments.cli import main as command_line
from testbed.experiments.cli.main import main


def test_usage_error_names_the_help_of_its_command(testbed):
    assert testbed.refused("calibrate", "fit", "profile", "--modle", "x").endswith(
        "--modle: no such option; did you mean --model? (testbed calibrate fit profile --help)\n"
    )


def test_without_words_the_commands_are_listed(testbed):
    assert testbed.done() == testbed.done("--help") == testbed.done("-h")
    assert "\n  run        Simulate " in testbed.done()


def test_debug_shows_the_traceback():
    with pytest.raises(ValueError, match="no such command"):
        main(["rnu", "--debug"])


@pytest.mark.parametrize(
    ("error", "code", "printed"),
    [
        (KeyboardInterrupt(), 130, "testbed: interrupted\n"),
        (command_line.Terminated(), 143, "testbed: terminated\n"),
        (RuntimeError("broken"), 2, "testbed list: error: RuntimeError: broken"),
        (OSError(28, "No space left on device", "a.csv"), 2, "a.csv: No space left on device"),
    ],
)
def test_end_of_a_command_by_an_exception(testbed, monkeypatch, error, code, printed):
    def fail(command, arguments):
        raise error

    monkeypatch.setattr(command_line, "call", fail)
    exit_code, output, reported = testbed("list")
    assert (exit_code, output) == (code, "")
    assert printed in reported
    assert reported.count("\n") == 1


def test_an_interrupt_counts_if_the_clean_up_behind_it_fails(testbed, monkeypatch):
    def interrupted(command, arguments):
        try:
            raise command_line.Terminated
        finally:
            raise AttributeError("half-made")

    monkeypatch.setattr(command_line, "call", interrupted)
    assert testbed("list") == (143, "", "testbed: terminated\n")


@pytest.mark.parametrize(
    ("line", "keeps_runs"),
    [
        ("run -m policy=paged,contiguous_max", True),
        ("run --seeds 3", True),
        ("capacity slo.ttft_s=1", True),
        ("plan gpu=l40s,h100-80gb", True),
        ("reproduce fig12", True),
        ("run policy=paged", False),
        ("compare a b", False),
    ],
)
def test_interrupted_commands_that_keep_runs_say_that_the_line_continues(
    testbed, monkeypatch, line, keeps_runs
):
    def interrupted(command, arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(command_line, "call", interrupted)
    _, _, reported = testbed(*line.split())
    assert ("the same line continues" in reported) == keeps_runs


def test_sigterm_is_an_interrupt_that_a_second_one_does_not_interrupt():
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(command_line.Terminated):
            command_line._terminated(signal.SIGTERM, None)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, handler)


def test_calibrate_names_missing_packages(testbed, monkeypatch):
    for name in ("testbed.kernels.measure.profile_sections", "torch"):
        monkeypatch.setitem(sys.modules, name, None)
    error = testbed.refused("gpu", "calibrate", "--model", "opt-13b", "--out", "x.json")
    check_words(("calibrate: needs",), error)
