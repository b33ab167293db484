"""A run's id changes with every file that its plug-in is made of, and with no other."""

import importlib
import sys

import pytest

from experiments.runs.identity import run_id
from experiments.runs.lab import composed
from experiments.runs.plug_in_files import plug_in_files

FILES = {
    "mine/__init__.py": "",
    "mine/policy.py": "import numpy\nfrom . import sizes\nfrom .deep import thing\nfrom testbed.core import slots\n",
    "mine/sizes.py": "def late():\n    import beside\n",
    "mine/deep/__init__.py": "from ..up import *\n",
    "mine/deep/thing.py": "import sys; sys.exit('executed')\n",
    "mine/up.py": "X = 1\n",
    "mine/unused.py": "X = 1\n",
    "beside.py": "import mine.policy\nimport not_there\n",
}
PART = {name for name in FILES if name != "mine/unused.py"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    return tmp_path


def name_of_run(target="mine.policy.Policy"):
    return run_id(composed("run", ("policy=custom", f"policy._target_={target}")))


@pytest.mark.parametrize("name", FILES)
def test_each_file_that_is_imported_counts(folder, name):
    before = name_of_run()
    assert before == name_of_run()
    with open(folder / name, "a") as file:
        file.write("# changed\n")
    assert (name_of_run() != before) == (name in PART)
    assert "mine" not in sys.modules


def test_they_are_named_as_modules_so_that_a_moved_folder_is_the_same_run(folder):
    assert set(plug_in_files("mine.policy.Policy")) == {
        "mine", "mine.policy", "mine.sizes", "mine.deep", "mine.deep.thing", "mine.up", "beside"
    }  # fmt: skip


def test_of_an_installed_package_all_files_count(tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "bought"
    package.mkdir(parents=True)
    for name in ("__init__.py", "policy.py", "table.json"):
        (package / name).write_text("")
    monkeypatch.syspath_prepend(package.parent)
    importlib.invalidate_caches()
    assert set(plug_in_files("bought.policy.Policy")) == {"bought/__init__.py", "bought/policy.py", "bought/table.json"}
    (tmp_path / "uses_it.py").write_text("import bought.policy\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert set(plug_in_files("uses_it.Policy")) == {"uses_it"}


@pytest.mark.parametrize(
    "target", ["testbed.memory.paged.paged.Paged", "json.JSONDecoder", "nowhere.Policy", "broken.X"]
)
def test_our_own_and_absent_ones_have_none(target):
    assert not plug_in_files(target)
