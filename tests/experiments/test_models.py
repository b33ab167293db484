"""Shapes of models: one file each, the same for the simulator, for Hydra and for the kernels; and a user's own."""

import json
import re
import subprocess
import sys
from dataclasses import asdict

import pytest
import yaml

from experiments.runs.lab import CONF, composed
from experiments.runs.make import make
from testbed.core.errors import InputError
from testbed.core.shapes import MODELS, model_names, read_model, shipped

OPTIONS = ("arrivals.duration_s=5", "outputs=summary")
MINE = {"_target_": "testbed.core.specs.ModelSpec", **asdict(read_model("llama-3-8b")), "name": "mine", "num_layers": 3}


@pytest.mark.parametrize("name", model_names())
def test_hydra_has_every_shape(name):
    assert make(composed("run", (f"model={name}",)).model) == read_model(name)
    assert read_model(name).name == name
    assert re.search(r"\(.+ 20\d\d\)", shipped(name).about), "where the numbers come from"


def test_no_shape_stands_twice():
    assert not (CONF / "model").exists()
    assert {path.suffix for path in MODELS.iterdir()} == {".json"}


def test_an_unknown_name_is_told_the_known_ones():
    with pytest.raises(InputError, match=r"unknown model opt-1b: choose one of llama-13b, .*opt-13b"):
        read_model("opt-1b")


def test_the_command_line_shows_and_changes_them(testbed, tmp_path):
    assert "OPT-13B (Zhang et al. 2022)" in testbed("list", "model")[1]
    code, *_ = testbed("run", "model=opt-66b", "model.max_len=1024", *OPTIONS, "hydra.run.dir=out")
    assert code == 0
    config = yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())
    assert config["model"] == {**MINE, **asdict(read_model("opt-66b")), "max_len": 1024}
    assert config["server"]["num_gpus"] == 4
    assert testbed("run", "model=foo")[0] == 2


def test_help_lists_them(tmp_path):
    command = [sys.executable, "-m", "experiments.commands.cli", "run", "--help"]
    output = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert f"model: {', '.join(model_names())}" in output


def test_workers_of_a_sweep_know_them_and_a_users_own(tmp_path):
    for name, text in (("model/mine", yaml.safe_dump(MINE)), ("server/of-mine", "defaults: [h200]\n")):
        path = tmp_path / "mine" / f"{name}.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    sweep = ["-m", "--config-dir=mine", "model=mine,llama-13b", *OPTIONS, "hydra/launcher=joblib"]
    command = [sys.executable, "-m", "experiments.commands.cli", "run", *sweep]
    subprocess.run(command, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    configs = [yaml.safe_load(path.read_text()) for path in tmp_path.glob("runs/*/config.yaml")]
    assert {config["model"]["num_layers"] for config in configs} == {3, 40}
    assert all(json.loads(path.read_text())["requests"]["arrived"] for path in tmp_path.glob("runs/*/summary.json"))
