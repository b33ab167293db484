"""A compiled build is used where its sources are what they were, and refused in one line where they are not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import testbed
from experiments.compiled.build import BuildError, build
from experiments.compiled.sources import INTERPRETED, compiled_sources, opened
from testbed.compiled import MANIFEST, SUFFIX, StaleBuildError, digest_of, use_build

ROOT = Path(testbed.__file__).parents[1]
REFUSED = "the compiled build is older than testbed/core/batch.py: `testbed compile` builds it anew"


@pytest.fixture
def tree(tmp_path):
    """A package as small as one can be refused, and a build that says what its source was."""
    package = tmp_path / "testbed"
    (package / "core").mkdir(parents=True)
    for name in ("__init__.py", "compiled.py", "core/__init__.py", "core/errors.py", "core/batch.py"):
        (package / name).write_bytes((ROOT / "testbed" / name).read_bytes())
    folder = package / ".compiled" / SUFFIX.strip(".").partition(".")[0]
    folder.mkdir(parents=True)
    source = package / "core/batch.py"
    stat = source.stat()
    line = f"{digest_of(str(source))} {stat.st_size} {stat.st_mtime_ns} testbed/core/batch.py\n"
    (folder / MANIFEST).write_text(line)
    return tmp_path, folder, source


@pytest.fixture(autouse=True)
def _finders_go_again(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))


def test_no_build_changes_nothing(tmp_path):
    finders = list(sys.meta_path)
    assert not use_build(str(tmp_path / "nothing"), str(tmp_path))
    assert sys.meta_path == finders


def test_a_build_of_these_sources_is_used_whatever_their_time_stamps(tree):
    root, folder, source = tree
    assert use_build(str(folder), str(root))
    os.utime(source, (1, 1))
    assert use_build(str(folder), str(root))


@pytest.mark.parametrize("change", ["longer", "of equal length", "gone"])
def test_a_changed_source_is_refused(tree, change):
    root, folder, source = tree
    text = source.read_text()
    if change == "gone":
        source.unlink()
    else:
        source.write_text(text + "\n" if change == "longer" else text.replace("1", "2"))
        os.utime(source, (1, 1))
    with pytest.raises(StaleBuildError, match=REFUSED):
        use_build(str(folder), str(root))


@pytest.mark.parametrize(
    "how", [["-c", "import testbed.core"], ["-m", "experiments.commands.cli", "check", "mine:Mine"]]
)
def test_nothing_runs_on_a_stale_build(tree, how):
    root, _, source = tree
    source.write_text(source.read_text() + "\n")
    elsewhere = root / "elsewhere"
    elsewhere.mkdir()
    path = os.pathsep.join([str(root), str(ROOT)])  # the stale package, with the commands of this one
    env = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    done = subprocess.run([sys.executable, *how], capture_output=True, text=True, cwd=elsewhere, env=env)
    lines = done.stderr.splitlines()
    assert REFUSED in lines[-1]
    assert not done.stdout
    if how[0] == "-m":
        assert (done.returncode, len(lines)) == (2, 1)
        assert lines[0].startswith("testbed check: error: the compiled build is older")


def test_the_command_that_mends_it_needs_nothing_of_it():
    text = "import sys, experiments.commands.compile; sys.exit('testbed' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", text], env={**os.environ, "PYTHONPATH": str(ROOT)}).returncode == 0


def test_classes_are_opened_without_moving_a_line():
    for path in compiled_sources(ROOT / "testbed"):
        text = path.read_text()
        before, after = text.splitlines(), opened(text).splitlines()
        changed = [(old, new) for old, new in zip(before, after, strict=False) if old and old != new]
        assert all(old.partition("->")[0] == new.partition("-> typing.Any")[0] for old, new in changed), path
        assert all(new.startswith(("as_abc(", "from testbed.compiled")) for new in after[len(before) :]), path


def test_without_a_compiler_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("CC", "no-such-compiler -O2")
    with pytest.raises(BuildError, match=r"needs a C compiler: no-such-compiler is not there|needs mypyc"):
        build(folder=tmp_path)


def test_what_stays_interpreted_is_there():
    assert all((ROOT / "testbed" / name).is_file() for name in INTERPRETED)
