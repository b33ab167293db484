"""The installed files: the wheel and the sdist hold all, run without the source tree, and leave
others their names.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from sysconfig import get_path

import pytest

from testbed import experiments
from testbed.experiments.cli.replayed_logs import EXAMPLE_LOG
from testbed.run.description import software

ROOT = Path(__file__).parents[2]
SOURCES = (
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "testbed",
    "kernels",
    "traces",
    "experiments",
    "tests",
)
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
ENVIRON = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@pytest.fixture(scope="session")
def tree(tmp_path_factory):
    """A copy, so that no build folder appears in the tree."""
    folder = tmp_path_factory.mktemp("tree")
    for name in filter(lambda name: (ROOT / name).exists(), SOURCES):
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name,
                folder / name,
                symlinks=True,
                ignore=shutil.ignore_patterns("__pycache__"),
            )
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="session")
def wheel(tree):
    return build(tree, "wheel")


def build(tree, target):
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", f"{target}s"]
    subprocess.run(command, cwd=tree, env=ENVIRON, check=True, capture_output=True)
    return next((tree / f"{target}s").iterdir())


def installed_here():
    """Files and folders by name, of all folders of packages that this interpreter sees: an
    environment may build on another one. The first of a name is the one that is imported.
    """
    paths = {}
    for folder in map(Path, sys.path):
        if folder.name in ("site-packages", "dist-packages") and folder.is_dir():
            paths = {path.name: path for path in folder.iterdir()} | paths
    return paths


@pytest.fixture
def environment(tmp_path):
    """A fresh environment that sees the dependencies of this one, but neither its packages' names
    nor its links.
    """
    folder = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    dependencies = tmp_path / "dependencies"
    dependencies.mkdir()
    for name, path in installed_here().items():
        is_own = name.startswith(("testbed", "kvcache_testbed", "kernels", "_editable_impl_"))
        if not is_own and path.suffix != ".pth":
            (dependencies / name).symlink_to(path)
    own = Path(get_path("purelib", vars={"base": str(folder)}))
    (own / "dependencies.pth").write_text(f"{dependencies}\n")
    return folder


def install(environment, *what):
    command = [
        *PIP,
        "--python",
        environment / "bin" / "python",
        "install",
        "-q",
        "--no-deps",
        "--no-compile",
    ]
    command += ["--ignore-installed", "--no-index", "--no-build-isolation", *what]
    subprocess.run(command, env=ENVIRON, check=True)


def output(environment, tool, *arguments, cwd):
    command = [environment / "bin" / tool, *arguments]
    return subprocess.run(
        command, cwd=cwd, env=ENVIRON, check=True, capture_output=True, text=True
    ).stdout


def names_in(folder):
    """Every file of the package, behind its links too; none of those that Python itself writes."""
    paths = (
        Path(at) / name for at, _, files in os.walk(folder, followlinks=True) for name in files
    )
    return {str(path.relative_to(folder.parent)) for path in paths if path.suffix != ".pyc"}


RAW = ("testbed/kernels/results/", "testbed/experiments/real/vllm_engine/results/")


def test_wheel_contains_exactly_the_package_without_raw_results(tree, wheel):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    folder = Path("testbed/experiments") / EXAMPLE_LOG.parent.relative_to(
        Path(experiments.__file__).parent
    )
    log = {str(folder / name) for name in ("meta.json", "requests.jsonl.gz")}
    others = {name for name in names_in(tree / "testbed") if not name.startswith(RAW)}
    assert names == others | log
    assert wheel.stat().st_size < 3_500_000
    assert {"testbed/experiments/conf/run.yaml", "testbed/kernels/src/decode.cu"} <= names


def test_sdist_contains_tests_and_builds_the_same_wheel(tree, wheel, tmp_path):
    with tarfile.open(build(tree, "sdist")) as archive:
        archive.extractall(tmp_path, filter="data")
    [unpacked] = tmp_path.iterdir()
    assert names_in(tree / "tests") <= names_in(unpacked / "tests")
    both = [zipfile.ZipFile(path).infolist() for path in (build(unpacked, "wheel"), wheel)]
    again, first = ({item.filename: item.CRC for item in items} for items in both)
    assert again == first


def test_installed_wheel_runs_from_an_empty_folder(wheel, other_package, environment, tmp_path):
    """Beside another distribution that has a module of one of our names."""
    install(environment, other_package, wheel)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    output(
        environment, "testbed", "run", "arrivals.duration_s=1", "hydra.run.dir=out", cwd=elsewhere
    )
    run = json.loads((elsewhere / "out" / "summary.json").read_text())["run"]
    assert (run["simulator"], run["commit"]) == (software()["simulator"], None)
    check_names(environment, other_package, environment)


@pytest.mark.slow
def test_installed_wheel_reproduces_figures(wheel, environment, tmp_path):
    install(environment, wheel)
    output(environment, "testbed", "reproduce", "fig2", "fig13", "--out", "results", cwd=tmp_path)
    assert {"fig2.png", "fig13.png", "scorecard.csv"} <= {
        path.name for path in (tmp_path / "results").iterdir()
    }


@pytest.fixture(scope="session")
def other_package(tmp_path_factory):
    """A package of the name of Hugging Face's `kernels`."""
    folder = tmp_path_factory.mktemp("theirs")
    about = "kernels-0.dist-info"
    with zipfile.ZipFile(folder / "kernels-0-py3-none-any.whl", "w") as file:
        file.writestr("kernels/__init__.py", "theirs = True\n")
        file.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: kernels\nVersion: 0\n")
        file.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{about}/RECORD", "")
    return folder / "kernels-0-py3-none-any.whl"


def test_an_editable_installation_leaves_others_their_module_names(
    tree, other_package, environment
):
    install(environment, other_package, "-e", tree)
    check_names(environment, other_package, tree)


def check_names(environment, other_package, home):
    """Ours are imported from this folder, and `kernels` is the other distribution's."""
    text = """if True:
        from importlib.util import find_spec
        import testbed.kernels, testbed.traces, testbed.experiments
        print(find_spec("kernels").origin)
        print(testbed.kernels.__file__)
        print(find_spec("traces"), find_spec("experiments"))
    """
    printed = output(environment, "python", "-c", text, cwd=environment.parent)
    kernels, own, nothing = printed.splitlines()
    assert Path(kernels).read_bytes() == zipfile.ZipFile(other_package).read("kernels/__init__.py")
    assert Path(own).is_relative_to(home)
    assert nothing == "None None"
