"""The version of this package, and the commit of a source tree."""

import os
import re
from pathlib import Path

TREE = Path(__file__).parents[1]
# `git describe` would walk through the whole history
STATE = ("status", "--porcelain=v2", "--branch", "--no-ahead-behind", "--untracked-files=no")
COMMIT = re.compile(r"^# branch\.oid ([0-9a-f]{12})", re.MULTILINE)


def release() -> str | None:
    """The installed version; None for a source tree that is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("kvcache-testbed")
    except PackageNotFoundError:
        return None


def commit(tree: Path = TREE) -> str | None:
    """The commit of a source tree, with + if files differ from it; None without one."""
    if not (tree / ".git").exists():  # installed: a repository around it would be another one
        return None
    import subprocess

    command = ("git", "-C", str(tree), *STATE)
    quiet = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        state = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=5, env=quiet
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    last = COMMIT.search(state)
    if last is None:
        return None
    differs = any(not line.startswith("#") for line in state.splitlines())
    return f"{last[1]}+" if differs else last[1]
