"""Plug-ins that give nonsense are refused by name, in one line and with exit code 2."""

import importlib.metadata

import pytest

OPTIONS = ("outputs=summary", "hydra.run.dir=out")
ARRIVALS = """
import numpy as np
class Given:
    def __init__(self, what): self.what = what
    def times_ps(self, rows, seed): return eval(self.what)
class Replayed(Given):
    replays = True
"""
TIMES = {
    "decreasing": "np.array([5, 3])",
    "negative": "np.array([-1, 3])",
    "float": "np.array([0.0, 1.5])",
    "none": "None",
    "ragged": "[[1, 2], [3]]",
    "nested": "np.array([[1]])",
    "text": "'abc'",
    "beyond 64 bits": "np.array([10**19], dtype=np.uint64)",
}


def refused(result, *culprits):
    code, _, error = result
    assert code == 2
    assert error.count("\n") == 1, error
    assert all(culprit in error for culprit in culprits), error


@pytest.mark.parametrize("name", TIMES)
def test_arrival_times_are_checked(testbed, tmp_path, name):
    (tmp_path / "given.py").write_text(ARRIVALS)
    times = ["arrivals=custom", "arrivals._target_=given.Given", f'+arrivals.what="{TIMES[name]}"']
    refused(testbed("run", *times, *OPTIONS), "given.Given")
    assert not (tmp_path / "out").exists()


def test_a_replay_gives_a_time_for_each_row(testbed, tmp_path):
    (tmp_path / "given.py").write_text(ARRIVALS)
    (tmp_path / "lengths.csv").write_text("input_tokens,output_tokens\n1,2\n1,3\n")
    replay = ["arrivals=custom", "arrivals._target_=given.Replayed", "+arrivals.what='np.array([1])'"]
    refused(testbed("run", "trace=csv", "trace.path=lengths.csv", *replay, *OPTIONS), "given.Replayed gave 1 times")


@pytest.mark.parametrize("mode", [(), ("-m",)])
@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("exits", "import sys; sys.exit(0)"),
        ("raises", "raise RuntimeError('boom')"),
        ("exits_when_called", "def Policy(pool): import sys; sys.exit(0)"),
    ],
)
def test_a_plug_in_may_not_leave(testbed, tmp_path, name, code, mode):
    (tmp_path / f"{name}.py").write_text(code)
    refused(testbed("run", *mode, "policy=custom", f"policy._target_={name}.Policy", *OPTIONS), f"{name}.Policy")
    assert not (tmp_path / "out").exists()


def test_nor_while_it_is_checked(testbed, tmp_path):
    (tmp_path / "leaves_checked.py").write_text("import sys; sys.exit(0)")
    refused(testbed("check", "leaves_checked:Policy"), "leaves_checked")


def test_nor_where_it_is_listed(testbed, tmp_path, monkeypatch):
    (tmp_path / "leaves_listed.py").write_text("import sys; sys.exit(0)")
    point = importlib.metadata.EntryPoint("mine", "leaves_listed:Policy", "testbed.policy")
    monkeypatch.setattr("experiments.runs.known_choices.entry_points", lambda group: [point])
    code, output, _ = testbed("list", "policy")
    assert code == 0
    assert "leaves_listed.Policy" in output
    assert "cannot be loaded" in output


def test_nor_in_the_middle_of_a_run(testbed, tmp_path):
    text = "from example_policy import Slabs\nclass Leaves(Slabs):\n    def admit(self, *_): raise SystemExit(0)\n"
    (tmp_path / "leaves_late.py").write_text(text)
    refused(testbed("run", "policy=custom", "policy._target_=leaves_late.Leaves", *OPTIONS), "sys.exit(0)")


def test_none_is_no_policy(testbed, tmp_path):
    (tmp_path / "nothing.py").write_text("def policy(pool): pass\n")
    refused(testbed("run", "policy=custom", "policy._target_=nothing.policy", *OPTIONS), "nothing.policy")
    refused(testbed("run", "policy=null", *OPTIONS), "policy")


def test_none_is_no_row(testbed, tmp_path):
    (tmp_path / "rowless.py").write_text("class Trace:\n    def rows(self, *_): pass\n")
    refused(testbed("run", "trace=custom", "trace._target_=rowless.Trace", *OPTIONS), "rowless.Trace.rows")
