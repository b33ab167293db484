"""Defaults stand in one place: plug-ins get those of the built-in choices, and constructors repeat none otherwise."""

import inspect
import subprocess
import sys

import hydra.utils
import pytest
import yaml

from experiments.runs.constructors import constructor
from experiments.runs.lab import CONF, composed

LIMITS = {"max_num_batched_tokens", "max_num_seqs"}
MINE = "from testbed.sched.mixed import MixedPrefill\nclass Mine(MixedPrefill):\n    pass\n"
BARE = (
    "from testbed.sched.mixed import MixedPrefill\n"
    "class Bare(MixedPrefill):\n"
    "    def __init__(self, policy, preemption, max_num_batched_tokens):\n"
    "        super().__init__(\n"
    "            policy, preemption, max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=7\n"
    "        )\n"
)
BUILT_IN = [
    f"{group}/{path.stem}"
    for group in ("policy", "eviction", "preemption", "arrivals")
    for path in sorted((CONF / group).glob("*.yaml"))
    if path.stem != "custom"
]
OPTIONS = ("arrivals.duration_s=20", "outputs=summary", "hydra.run.dir=out")


def scheduler(*overrides):
    node = composed("run", overrides).scheduler
    return {key: value for key, value in node.items() if key != "_target_"}


@pytest.mark.parametrize("name", ["separate", "chunked", "custom"])
def test_every_scheduler_has_the_same_limits(name):
    assert set(scheduler("scheduler=mixed")) == LIMITS
    target = ("scheduler._target_=my.Scheduler",) if name == "custom" else ()
    assert scheduler(f"scheduler={name}", *target) == scheduler("scheduler=mixed")


def test_a_plug_in_runs_under_them(testbed, tmp_path):
    (tmp_path / "mine_scheduler.py").write_text(MINE)
    assert testbed("run", "scheduler=custom", "scheduler._target_=mine_scheduler.Mine", *OPTIONS)[0] == 0
    config = yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())
    assert config["scheduler"]["max_num_seqs"] == 2048


def test_one_that_takes_fewer_is_told_how(testbed, tmp_path):
    (tmp_path / "bare_scheduler.py").write_text(BARE)
    mine = ("run", "scheduler=custom", "scheduler._target_=bare_scheduler.Bare")
    code, _, error = testbed(*mine, *OPTIONS)
    assert (code, error.count("\n")) == (2, 1)
    assert "bare_scheduler.Bare" in error
    assert "~scheduler.max_num_seqs" in error
    assert testbed(*mine, "~scheduler.max_num_seqs", *OPTIONS)[0] == 0


@pytest.mark.parametrize("command", [["list", "scheduler"], ["run", "--help"]])
def test_limits_are_no_choice(tmp_path, command):
    line = [sys.executable, "-m", "experiments.commands.cli", *command]
    output = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    names = [word for line in output.splitlines() if "scheduler" in line for word in line.replace(",", " ").split()]
    assert "mixed" in names
    assert "limits" not in names


@pytest.mark.parametrize("choice", BUILT_IN)
def test_constructors_and_configs_agree(choice):
    values = yaml.safe_load((CONF / f"{choice}.yaml").read_text())
    parameters = inspect.signature(constructor(hydra.utils.get_object(values["_target_"]))).parameters
    for name, value in values.items():
        if name in parameters and parameters[name].default is not inspect.Parameter.empty:
            assert parameters[name].default == value, name
