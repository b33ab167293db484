"""The wheel: everything in it that a run needs, and a run from another folder without the source tree."""

import os
import shutil
import site
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "testbed", "kernels", "traces", "experiments")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy, so that no build folder appears in the tree."""
    if int(version("setuptools").partition(".")[0]) < 77:
        pytest.skip("needs setuptools 77 or later here, because it builds without the network")
    folder = tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", "dist", "."]
    subprocess.run(command, cwd=folder, check=True)
    return next((folder / "dist").glob("*.whl"))


def test_it_holds_code_and_data_but_no_tests(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    data = [
        str(path.relative_to(ROOT))
        for package in SOURCES[3:]
        for suffix in ("yaml", "json", "csv", "cu", "cuh", "md", "html", "css", "js")
        for path in (ROOT / package).rglob(f"*.{suffix}")
        if not path.name.startswith(".")
    ]
    assert "experiments/conf/run.yaml" in data
    assert set(data) <= set(names)
    assert not [name for name in names if name.startswith("tests")]


def test_it_runs_installed_and_from_another_folder(wheel, tmp_path):
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    own = next((environment / "lib").glob("python*")) / "site-packages"
    (own / "dependencies.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    install = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index"]
    subprocess.run([*install, "--ignore-installed", wheel], check=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [environment / "bin" / "testbed", "run", "arrivals.duration_s=20", "hydra.run.dir=out"]
    subprocess.run(command, cwd=elsewhere, env=clean, check=True, stdout=subprocess.DEVNULL)
    assert (elsewhere / "out" / "summary.json").exists()
    where = [python, "-c", "import experiments; print(experiments.__file__)"]
    found = subprocess.run(where, cwd=elsewhere, env=clean, check=True, capture_output=True, text=True).stdout
    assert Path(found.strip()).is_relative_to(environment)
