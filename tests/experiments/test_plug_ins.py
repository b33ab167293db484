"""A policy outside the package: run by name, with only its own parameters, checked, listed."""

import importlib.metadata
from pathlib import Path

import pytest
import yaml

EXAMPLE = Path(__file__).parent / "example_policy.py"


def test_the_example_is_short():
    assert len(EXAMPLE.read_text().splitlines()) < 60


def test_a_policy_is_named_on_the_command_line(testbed, tmp_path):
    options = ("arrivals.duration_s=20", "outputs=summary", "hydra.run.dir=a")
    code, _, error = testbed(
        "run", "policy=custom", "policy._target_=example_policy.Slabs", "+policy.slab_size=32", *options
    )
    assert (code, error) == (0, "")
    config = yaml.safe_load((tmp_path / "a" / "config.yaml").read_text())
    assert config["policy"] == {"_target_": "example_policy.Slabs", "slab_size": 32}


def test_a_wrong_parameter_is_named(testbed):
    code, _, error = testbed("run", "policy=custom", "policy._target_=example_policy.Slabs", "+policy.alpha=3")
    assert code == 2
    assert "alpha" in error


def test_the_example_keeps_the_contract(testbed):
    code, output, _ = testbed("check", "example_policy:Slabs", "slab_size=8")
    assert (code, output) == (0, "example_policy:Slabs keeps the contract\n")


def test_check_prints_the_clause_and_the_calls(testbed, tmp_path):
    (tmp_path / "leaky.py").write_text(
        "from example_policy import Slabs\n"
        "class Leaky(Slabs):\n"
        "    def release(self, seq):\n"
        "        super().release(seq)\n"
        "        self.free.pop()\n"
    )
    code, output, _ = testbed("check", "leaky:Leaky")
    assert code == 1
    assert "clause 4" in output
    assert "release" in output


def test_list_shows_built_ins_and_entry_points(testbed, monkeypatch):
    point = importlib.metadata.EntryPoint("slabs", "example_policy:Slabs", "testbed.policy")
    monkeypatch.setattr(
        "experiments.runs.known_choices.entry_points", lambda group: [point] if group == point.group else []
    )
    code, output, _ = testbed("list", "policy")
    assert code == 0
    assert "testbed.memory.paged.paged.Paged" in output
    assert "example_policy.Slabs" in output


@pytest.mark.parametrize("command", ["run", "reproduce", "bench", "list", "check"])
def test_every_command_explains_itself(testbed, command):
    try:
        code, output, _ = testbed(command, "--help")
    except SystemExit as done:  # argparse and Hydra leave by themselves
        code, output = done.code, f"testbed {command}"
    assert code in (0, None)
    assert f"testbed {command}" in output
