"""Typing mistakes: one line, exit code 2, the mistake, and the nearest spelling."""

import signal

import pytest

from testbed.experiments.cli import main as command_line
from testbed.experiments.cli.main import main

MISTAKES = {  # words, and what the line names
    "frobnicate": "testbed: error: frobnicate: no such command (choose from run, ",
    "lis": "did you mean list?",
    "rnu policy=paged": "did you mean run?",
    "--hlep": "--hlep: no such option; did you mean --help?",
    "--verison": "did you mean --version?",
    "import modle config.json": "testbed import: error: modle: no such command; did you mean",
    "show memroy runs/x": "did you mean memory?",
    "gpu measure transfer": "did you mean transfers?",
    "calibrate fit softwear log.csv": "did you mean software?",
    "validate cost": "cost: no such log; did you mean costs?",
    "compare --htlm out.html a b": "--htlm: no such option; did you mean --html?",
    "report runs --out page.html": "--out page.html: is now --html page.html",
    "show memory runs --out page.html": "--out page.html: is now --html page.html",
    "capacity policy=paged --presicion 0.1": "did you mean --precision?",
    "reproduce fig2 --seds 3": "did you mean --seeds?",
    "list policy --config-dri x": "did you mean --config-dir?",
    "bench --repeat 3": "--repeat: no such option; did you mean --repeats?",
    "bench --nope": "--nope: no such option (testbed bench --help)",
    "run policy=paged --agian": "did you mean --again?",
    "capacity policy=paged --share ten": "--share ten: must be a number",
    "capacity policy=paged --share": "--share: has no value",
    "capacity policy=paged --share 0.5 --share 0.6": "--share: is given twice",
    "reproduce fig2 --jobs 0": "--jobs 0: must be at least 1",
    "reproduce fig2 --jobs two": "--jobs two: must be a whole number",
    "show timeline runs/x --from -1": "--from -1: must be a number of seconds from 0 to 9,000,000",
    "show memory runs/x --from nan": "--from nan: must be a number of seconds",
    "import profile x --out y --link 0": "--link 0: must be a number above 0",
    "import profile x --out y --link inf": "--link inf: must be a number above 0",
    "plot fig2 results --out x.doc": "--out x.doc: must end in .pdf, .png, .svg",
    "compare": "[NAME=]RUN: is missing",
    "show memory": "RUN: is missing",
    "show memory runs/x runs/y": "runs/y: nothing reads it",
    "gpu calibrate --model opt-13b": "--out: is missing",
    "calibrate fit constants beam": "KIND=beam: must be one of 2023, beams, sampler; did you mean",
    "lockstep vlm": "SERVER=vlm: must be one of vllm, sglang; did you mean vllm?",
    "completion bahs": "did you mean bash?",
    "run polcy=paged": "polcy: nothing reads it; did you mean policy?",
    "run policy=pagd": "did you mean paged?",
    "run arrivals.rat=2": "did you mean arrivals.rate?",
    "run arrivals.rate=fast": "arrivals.rate='fast': must be a number",
    "list polcy": "polcy: is no group; did you mean policy?",
    "reproduce fig22": "figure 'fig22': is unknown; did you mean fig2?",
    "compare nowhere": "nowhere: no such folder",
    "import model nowhere/config.json": "nowhere/config.json: No such file",
    "run --config-dir nowhere": "--config-dir nowhere: no such folder",
    "validate nolog.csv": "nolog.csv: no such log",
    "plot fig2 nowhere": "nowhere/fig2.csv: no such file",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_typing_mistake_gives_one_line_with_the_nearest_spelling(testbed, line):
    error = testbed.refused(*line.split())
    assert error.startswith("testbed"), error
    assert ": error: " in error, error
    assert MISTAKES[line] in error, error


def test_usage_error_names_the_help_of_its_command(testbed):
    assert testbed.refused("calibrate", "fit", "profile", "--modle", "x").endswith(
        "--modle: no such option; did you mean --model? (testbed calibrate fit profile --help)\n"
    )


def test_without_words_the_commands_are_listed(testbed):
    assert testbed.done() == testbed.done("--help") == testbed.done("-h")
    assert "\n  run         Simulate " in testbed.done()


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


@pytest.mark.parametrize(
    ("line", "keeps_runs"),
    [
        ("run -m policy=paged,contiguous_max", True),
        ("run --seeds 3", True),
        ("compare a b --seeds 3", True),
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
