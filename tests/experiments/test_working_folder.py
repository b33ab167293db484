"""Plug-ins beside the user import, in workers too, but a file there never takes the place of an installed one."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHADOWS = ("simpy", "numpy", "omegaconf", "joblib", "json", "logging", "random", "pathlib", "traces", "testbed")
RUN = ("policy=custom", "policy._target_=beside.Slabs", "arrivals.duration_s=5", "outputs=summary")
START = [sys.executable, "-m", "experiments.commands.cli"]
LAUNCHERS = {
    "none": [],
    "sweep": ["-m"],
    "joblib": ["-m", "hydra/launcher=joblib"],
    "submitit": ["-m", "hydra/launcher=submitit_local"],
}


@pytest.fixture
def folder(tmp_path):
    """A plug-in, its helper, and files that would break everything if they were imported."""
    text = "import helper\nfrom example_policy import Slabs\n"
    (tmp_path / "beside.py").write_text(text)
    (tmp_path / "helper.py").write_text("")
    shutil.copy(Path(__file__).with_name("example_policy.py"), tmp_path)
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong file was imported')\n")
    return tmp_path


def call(folder, *command):
    """In an environment in which this source tree is as good as installed."""
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    return subprocess.run(
        command, cwd=folder, env={**plain, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_nothing_there_shadows(folder, launcher):
    if launcher == "submitit" and not find_spec("submitit"):
        pytest.skip('submitit is not installed: pip install -e ".[cluster]"')
    done = call(folder, *START, "run", *LAUNCHERS[launcher], *RUN)
    assert done.returncode == 0, done.stderr
    assert len(list(folder.glob("runs/*/summary.json"))) == 1
    notes = done.stderr.splitlines()
    assert [note.split()[2] for note in notes if "note:" in note] == ["testbed.py", "traces.py"]


def test_a_deleted_folder_is_one_line(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    command = 'rmdir "$PWD"; exec "$@"'
    done = call(gone, "sh", "-c", command, "sh", *START, "run")
    assert done.returncode == 2
    assert done.stderr == "testbed run: error: the working folder has been deleted; change to one that exists\n"
