"""Help, lists and completion answer without slow packages."""

import shutil
import subprocess
import sys

import pytest

SLOW = {"hydra", "omegaconf", "matplotlib", "pandas", "numpy", "simpy", "torch", "cupy"}
ASK = """
import contextlib, io, sys
from testbed.experiments.commands.cli import main

def ask(*arguments):
    "What a command prints; it must end well."
    with contextlib.redirect_stdout(io.StringIO()) as said:
        try:
            code = main(list(arguments))
        except SystemExit as end:
            code = end.code
    assert not code and said.getvalue(), arguments
    assert "--help" not in arguments[1:] or "testbed " + arguments[0] in said.getvalue(), arguments
    slow = {slow} & sys.modules.keys()
    assert not slow, (arguments, slow)
    return said.getvalue()

{body}
"""
ANSWERS = """
commands = ask("completion", "--of", "testbed ").split()
assert len(commands) > 15
for words in (["--help"], ["--version"], ["list"], ["completion"]):
    ask(*words)
for command in commands:
    if command != "run":
        ask(command, "--help")
"""
RUN_HELP = "ask('run', 'policy=prefix_caching', '-h')"  # which Hydra composes
REPLAY = "ask('validate', 'log.csv')"


@pytest.mark.parametrize(
    ("body", "slow"),
    [
        (ANSWERS, SLOW),
        (RUN_HELP, SLOW - {"hydra", "omegaconf"}),
        (REPLAY, {"pandas", "matplotlib", "torch"}),
    ],
)
def test_help_and_lists_import_no_slow_package(tmp_path, body, slow):
    """Not for help and lists; and a replayed log needs no data frames."""
    (tmp_path / "log.csv").write_text(
        "input_tokens,output_tokens,arrival_s,first_token_s,finish_s\n9,3,0,0.1,0.2\n"
    )
    (tmp_path / "timeseries.csv").write_text("t,running\n0,1\n")
    code = ASK.format(slow=slow, body=body)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_printed_bash_script_completes_commands_and_options(testbed, command, tmp_path):
    requested = {
        "testbed re": ["report", "reproduce"],
        "testbed list ev": ["eviction"],
        "testbed run pol": ["policy.block_size=", "policy.watermark=", "policy="],
        "testbed run policy=contiguous_max policy.": ["policy.block_size="],
        "testbed run policy=pag": ["paged", "paged_2023"],
        "testbed run model=opt-13b +system=orca-m": ["orca-max"],
        "testbed run eviction@policy.eviction=co": ["cost_aware"],
        "testbed reproduce moo": ["mooncake"],
        "testbed compare --h": ["--help", "--html"],
        "testbed run --f": ["--from-vllm"],
        "testbed bench-kernels --r": ["--rounds"],
        "testbed run arrivals.rate=": [],
    }
    (tmp_path / "testbed").write_text(f'#!/bin/sh\nexec {" ".join(command)} "$@"\n')
    (tmp_path / "testbed").chmod(0o755)
    ask = (
        'COMP_LINE="{}"; COMP_POINT=${{#COMP_LINE}}; COMPREPLY=(); _testbed; '
        'echo "${{COMPREPLY[*]}}"'
    )
    script = "\n".join(
        [f'PATH="{tmp_path}:$PATH"', testbed("completion")[1], *map(ask.format, requested)]
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert [line.split() for line in done.stdout.splitlines()] == list(requested.values())
