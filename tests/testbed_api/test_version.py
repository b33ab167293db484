"""The commit of a source tree, in repositories that Git makes here."""

import subprocess

import pytest

from testbed.version import commit

AUTHOR = ("-c", "user.name=name", "-c", "user.email=name@example.org")


@pytest.fixture
def git(tmp_path):
    """Runs Git in a new repository with a file that is not committed yet."""

    def run(*words):
        command = ("git", "-C", tmp_path, *AUTHOR, *words)
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    run("init", "--quiet")
    (tmp_path / "file").write_text("one\n")
    run("add", "file")
    return run


def test_a_tree_without_a_repository_or_without_commits_has_none(tmp_path, git):
    assert commit(tmp_path / "nothing") is None
    assert commit(tmp_path) is None


def test_a_changed_file_marks_the_commit_and_a_new_one_does_not(tmp_path, git):
    git("commit", "--quiet", "--message", "one")
    last = git("rev-parse", "--short=12", "HEAD")
    (tmp_path / "new").write_text("new\n")
    assert commit(tmp_path) == last
    (tmp_path / "file").write_text("two\n")
    assert commit(tmp_path) == f"{last}+" == git("describe", "--always", "--abbrev=12", "--dirty=+")
    git("add", "file")
    assert commit(tmp_path) == f"{last}+"
