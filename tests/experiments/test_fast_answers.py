"""Help and lists answer without what only a run needs, and calibrate says what is wrong before it measures."""

import subprocess
import sys

import pytest

ASK = """
import sys
sys.argv = ["testbed", *{arguments}]
from experiments.commands.cli import dispatch
assert dispatch(sys.argv[1:]) == 0
print(*sorted(name for name in {slow} if name in sys.modules), file=sys.stderr)
"""
SLOW = ["hydra", "omegaconf", "matplotlib", "pandas", "numpy", "simpy", "torch", "cupy"]


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["list"], ["run", "--help"], ["run", "policy=prefix_caching", "-h"], ["completion"],
     ["calibrate", "--help"]],
)  # fmt: skip
def test_nothing_slow_is_imported(tmp_path, arguments):
    code = ASK.format(arguments=arguments, slow=SLOW)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.split() == []
    assert done.stdout


def test_calibrate_names_what_it_needs(testbed, monkeypatch):
    monkeypatch.setitem(sys.modules, "kernels.measure.calibrate", None)
    monkeypatch.setitem(sys.modules, "torch", None)
    code, _, error = testbed("calibrate", "--model", "opt-13b", "--out", "x.json")
    assert (code, error.count("\n")) == (2, 1)
    assert "calibrate needs" in error
