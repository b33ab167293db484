"""Help and lists answer without slow packages; every command's help is complete."""

import subprocess
import sys

import pytest

from testbed.experiments.cli.app import application
from testbed.experiments.cli.commands import COMMANDS

SLOW = {"pydantic", "hydra", "omegaconf", "matplotlib", "pandas", "numpy", "simpy", "torch", "cupy"}
# A generous bound: typically 0.1 s and 0.3 s. Slow packages would add 0.3 to 3 s.
SECONDS_OF_HELP = 1.0
ASK = """
import contextlib, io, sys
from testbed.experiments.cli.main import main

SLOW = {slow}

def ask(*arguments):
    "Returns the output of a command, which must end well."
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            code = main(list(arguments))
        except SystemExit as end:
            code = end.code
    assert not code and printed.getvalue(), arguments
    slow = SLOW & sys.modules.keys()
    assert not slow, (arguments, slow)
    return printed.getvalue()

{body}
"""
REPLAY = """
SLOW &= {'pandas', 'matplotlib', 'torch'}
ask('validate', 'log.csv', 'model=opt-13b')
"""


def paths_of_commands(app, *above):
    """Every command and group below an app, each as its words."""
    for name, command in app.resolved_commands().items():
        if not name.startswith("-"):
            yield (*above, name)
            yield from paths_of_commands(command, *above, name)


ALL = list(paths_of_commands(application))


def run_in_a_process(folder, body):
    done = subprocess.run(
        [sys.executable, "-c", ASK.format(slow=SLOW, body=body)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_help_and_lists_import_no_slow_package_nor_a_replayed_log_data_frames(tmp_path):
    (tmp_path / "log.csv").write_text(
        "input_tokens,output_tokens,arrival_s,first_token_s,finish_s\n9,3,0,0.1,0.2\n"
    )
    asked = [
        ("--help",),
        ("--version",),
        ("list",),
        ("list", "--json"),
        *((*words, "--help") for words in ALL),
    ]
    run_in_a_process(tmp_path, f"for words in {asked}:\n    ask(*words)\n{REPLAY}")


def test_the_list_of_commands_imports_no_library(tmp_path):
    body = "ask('--help'); assert 'cyclopts' not in sys.modules; assert 'rich' not in sys.modules"
    run_in_a_process(tmp_path, body)


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"]], ids=" ".join)
def test_help_answers_soon(command, words):
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, "
        "stdout=subprocess.DEVNULL); used = resource.getrusage(resource.RUSAGE_CHILDREN); "
        "print(used.ru_utime + used.ru_stime)"
    )
    measure = [sys.executable, "-c", code, *command, *words]
    assert any(float(subprocess.check_output(measure)) < SECONDS_OF_HELP for _ in range(3))


def test_the_list_of_commands_says_what_their_help_says():
    for name, _, about in COMMANDS:
        assert application[name].help.partition("\n")[0] == about, name


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_parameter_has_help(words):
    app = application
    for word in words:
        app = app[word]
    assert app.help
    if app.default_command is not None:
        for argument in app.assemble_argument_collection():
            assert argument.parameter.help or argument.children, argument.name


def test_help_of_a_run_shows_the_options_of_groups(testbed, tmp_path):
    (tmp_path / "mine" / "policy").mkdir(parents=True)
    (tmp_path / "mine" / "policy" / "first_fit.yaml").write_text("_target_: a.B\n")
    printed = testbed.done("run", "--help", "--config-dir", "mine")
    assert "\n  cost: analytic, auto, " in printed
    assert "first_fit" in printed


def test_values_of_a_run_follow_its_overrides(testbed):
    printed = testbed.done("run", "--values", "policy=prefix_caching", "arrivals.rate=3")
    assert "  rate: 3  # requests/s\n" in printed
    assert "  _target_: testbed.memory.prefix_cache" in printed
