"""Help and lists answer without what only a run needs, and calibrate says what is wrong before it measures."""

import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec

import pytest

from experiments.commands.cli import ARGUMENTS, COMMANDS

ASK = """
import sys
arguments = {arguments}
from experiments.commands.cli import dispatch
try:
    code = dispatch(arguments)
except SystemExit as end:
    code = end.code
print(*sorted(name for name in {slow} if name in sys.modules), file=sys.stderr)
sys.exit(code)
"""
SLOW = ["hydra", "omegaconf", "matplotlib", "pandas", "numpy", "simpy", "torch", "cupy"]
OTHERS = [["--help"], ["--version"], ["list"], ["run", "policy=prefix_caching", "-h"], ["completion"]]


def imported(folder, arguments):
    """What of the slow packages a command has imported; it must have ended well."""
    code = ASK.format(arguments=arguments, slow=SLOW)
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    return done.stderr.split()


@pytest.mark.parametrize("arguments", OTHERS, ids=" ".join)
def test_nothing_slow_is_imported(tmp_path, arguments):
    assert imported(tmp_path, arguments) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_imports_nothing_slow(tmp_path, command):
    assert imported(tmp_path, [command, "--help"]) == []


def test_a_command_explains_itself_as_it_parses():
    """The module that answers help is the one whose parser the command uses."""
    for name, (module, _) in COMMANDS.items():
        arguments = ARGUMENTS.format(name.replace("-", "_"))
        if find_spec(arguments):
            assert import_module(module).parser is import_module(arguments).parser


def test_a_replayed_log_needs_no_data_frames(tmp_path):
    (tmp_path / "log.csv").write_text("input_tokens,output_tokens,arrival_s,first_token_s,finish_s\n9,3,0,0.1,0.2\n")
    (tmp_path / "timeseries.csv").write_text("t,running\n0,1\n")
    assert not {"pandas", "matplotlib", "torch"} & set(imported(tmp_path, ["validate", "log.csv"]))


def test_calibrate_names_what_it_needs(testbed, monkeypatch):
    monkeypatch.setitem(sys.modules, "kernels.measure.calibrate", None)
    monkeypatch.setitem(sys.modules, "torch", None)
    code, _, error = testbed("calibrate", "--model", "opt-13b", "--out", "x.json")
    assert (code, error.count("\n")) == (2, 1)
    assert "calibrate needs" in error
