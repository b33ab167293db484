"""A sweep through the launchers for clusters, as far as one machine allows."""

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

PLUG_INS = {
    "submitit_local": ("submitit", "hydra_plugins.hydra_submitit_launcher"),
    "ray": ("ray", "hydra_plugins.hydra_ray_launcher"),
}


def installed(modules):
    try:
        return all(find_spec(module) for module in modules)
    except ModuleNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("launcher", PLUG_INS)
def test_a_sweep_goes_through_the_launcher(tmp_path, launcher):
    if not installed(PLUG_INS[launcher]):
        pytest.skip(f'{launcher} is not installed: pip install -e ".[cluster]"')
    sweep = ["-m", "policy=paged,contiguous_max", "arrivals.duration_s=30", "outputs=summary"]
    command = [sys.executable, "-m", "experiments.commands.cli", "run", *sweep, f"hydra/launcher={launcher}"]
    subprocess.run(command, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    summaries = list(tmp_path.glob("runs/*/summary.json"))
    assert len(summaries) == 2
    assert all(json.loads(path.read_text())["requests"]["finished"] for path in summaries)
