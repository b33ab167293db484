"""Help, lists and completion answer without slow packages; every command's help is complete."""

import shutil
import subprocess
import sys

import pytest

from testbed.experiments.cli.app import application
from testbed.experiments.cli.commands import COMMANDS
from testbed.experiments.cli.completion import paths_of_commands

SLOW = {"pydantic", "hydra", "omegaconf", "matplotlib", "pandas", "numpy", "simpy", "torch", "cupy"}
# A generous bound: typically 0.1 s and 0.3 s. Slow packages would add 0.3 to 3 s.
SECONDS_OF_HELP = 1.0
ASK = """
import contextlib, io, sys
from testbed.experiments.cli.main import main

def ask(*arguments):
    "What a command prints; it must end well."
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            code = main(list(arguments))
        except SystemExit as end:
            code = end.code
    assert not code and printed.getvalue(), arguments
    slow = {slow} & sys.modules.keys()
    assert not slow, (arguments, slow)
    return printed.getvalue()

{body}
"""
REPLAY = "ask('validate', 'log.csv', 'model=opt-13b')"


ALL = list(paths_of_commands(application))


def run_in_a_process(folder, slow, body):
    done = subprocess.run(
        [sys.executable, "-c", ASK.format(slow=slow, body=body)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_help_lists_and_completion_import_no_slow_package(tmp_path):
    asked = [
        ("--help",),
        ("--version",),
        ("list",),
        ("list", "--json"),
        ("completion", "bash"),
        ("__complete", "run", "policy=pa"),
        *((*words, "--help") for words in ALL),
    ]
    run_in_a_process(tmp_path, SLOW, f"for words in {asked}:\n    ask(*words)")


def test_the_list_of_commands_imports_no_library(tmp_path):
    body = "ask('--help'); assert 'cyclopts' not in sys.modules; assert 'rich' not in sys.modules"
    run_in_a_process(tmp_path, SLOW, body)


def test_a_replayed_log_needs_no_data_frames(tmp_path):
    (tmp_path / "log.csv").write_text(
        "input_tokens,output_tokens,arrival_s,first_token_s,finish_s\n9,3,0,0.1,0.2\n"
    )
    run_in_a_process(tmp_path, {"pandas", "matplotlib", "torch"}, REPLAY)


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


OFFERED = {  # a line, and the words that bash asks for
    "run pol": ["policy.block_size=", "policy.watermark=", "policy="],
    "run policy=pag": ["policy=paged", "policy=paged_2023"],
    "run model=opt-13b +system=orca-m": ["+system=orca-max"],
    "calibrate fit software log.csv model=opt-1": ["model=opt-13b", "model=opt-175b"],
    "run arrivals.rate=": [],
}
COMPLETED = {  # a line, and the candidates for its last word in bash, which asks for three
    "testbed re": ["report", "reproduce"],
    "testbed show ": ["charts", "memory", "timeline"],
    "testbed list ev": ["eviction"],
    "testbed run policy=contiguous_max policy.": ["policy.block_size="],
    "testbed run -m policy=paged,contiguous_o": [r"paged\,contiguous_oracle"],
    "testbed run eviction@policy.eviction=co": ["cost_aware"],
    "testbed reproduce moo": ["mooncake"],
    "testbed compare --h": ["--help", "--html"],
    "testbed run --f": ["--figure", "--from-sglang", "--from-vllm"],
    "testbed gpu bench --o": ["--out"],
    "testbed calibrate fit constants b": ["beams"],
}


@pytest.mark.parametrize("line", OFFERED)
def test_the_last_word_is_completed(testbed, line):
    _, begin, words = testbed.done("__complete", *line.split()).partition("\x1fbegin\n")
    assert begin
    assert sorted(words.splitlines()) == sorted(OFFERED[line])


@pytest.fixture
def installed(command, tmp_path):
    """A folder with the command `testbed`."""
    (tmp_path / "testbed").write_text(f'#!/bin/sh\nexec {" ".join(command)} "$@"\n')
    (tmp_path / "testbed").chmod(0o755)
    return tmp_path


def bash_words(line):
    """The line as bash splits it for completion, at = and @ as well."""
    spaced = line.replace("=", " = ").replace("@", " @ ")
    return [*spaced.split(), *([""] if line.endswith(" ") else [])]


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_commands_options_and_overrides(testbed, installed):
    ask = "COMP_WORDS=({words}); COMP_CWORD={last}; COMPREPLY=(); _testbed_without_space; {print}"
    lines = [f'PATH="{installed}:$PATH"', testbed.done("completion", "bash")]
    for line in COMPLETED:
        words = bash_words(line)
        quoted = " ".join(f"'{word}'" for word in words)
        lines.append(ask.format(words=quoted, last=len(words) - 1, print='echo "${COMPREPLY[*]}"'))
    done = subprocess.run(["bash", "-c", "\n".join(lines)], capture_output=True, text=True)
    completed = dict(zip(COMPLETED, map(str.split, done.stdout.splitlines()), strict=True))
    assert {line: sorted(words) for line, words in completed.items()} == {
        line: sorted(words) for line, words in COMPLETED.items()
    }


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh")
def test_zsh_reads_the_script_and_gets_whole_words(testbed, installed):
    script = testbed.done("completion", "zsh")
    asked = "testbed __complete run policy=paged_"
    lines = [f'PATH="{installed}:$PATH"', script, "whence -w _cyclopts_testbed", asked]
    done = subprocess.run(
        ["zsh", "-fc", "\n".join(lines)], capture_output=True, text=True, cwd=installed
    )
    assert "_cyclopts_testbed: function" in done.stdout
    assert "policy=paged_2023" in done.stdout.split()
