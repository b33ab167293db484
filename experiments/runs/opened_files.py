"""Files that a plug-in opens and no parameter names, found by Python's audit events while a run is built.

A run's id is known before the run, so it cannot cover them; the run folder keeps their hashes, and a run is complete
only while they are the same. What goes unseen: a file that C code opens by itself, one that is opened in the middle of
the simulation, and one that a module opened when an earlier run of the same process imported it.
"""

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import source_from_cache
from pathlib import Path
from typing import Any

from testbed.config import RunConfig
from testbed.identity import ROOT, content_hash, input_files
from testbed.plug_in_files import INSTALLED

INPUTS = "inputs.json"
_under_way: list[set[str]] = []


@contextmanager
def opened_files() -> Iterator[set[str]]:
    """The paths of all files that are opened for reading while the body runs."""
    _listen()
    found = set[str]()
    _under_way.append(found)
    try:
        yield found
    finally:
        _under_way.remove(found)


def hashes(opened: Iterable[str], config: RunConfig) -> dict[str, str]:
    """SHA-256 of those files by path that the config does not name, and that belong neither to Python nor to us."""
    if all(part.name.startswith("testbed.") for part in config.parts.values()):
        return {}
    named = {path.resolve() for _, path in input_files(config)}
    sources = (source_from_cache(path) if path.endswith(".pyc") else path for path in opened)
    paths = sorted({Path(path).resolve() for path in sources})
    return {str(path): content_hash(path) for path in paths if path not in named and _is_users(path)}


def have_changed(inputs: Path) -> bool:
    """Whether a file that a run opened is not what it was."""
    if not inputs.is_file():
        return False
    kept: dict[str, str] = json.loads(inputs.read_text(encoding="utf-8"))
    return any(not Path(path).is_file() or content_hash(path) != digest for path, digest in kept.items())


@cache
def _listen() -> None:
    """Once in a process, for a hook stays for good."""
    sys.addaudithook(_heard)


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or not _under_way or isinstance(arguments[0], int):
        return
    path, mode, flags = arguments
    if flags & os.O_ACCMODE == os.O_RDONLY if mode is None else not set(mode) & set("wax+"):
        path = os.path.abspath(os.fsdecode(path))
        for found in _under_way:
            found.add(path)


def _is_users(path: Path) -> bool:
    ours = [ROOT, *((ROOT / name).resolve() for name in ("traces", "kernels", "experiments"))]
    others = [Path(folder).resolve() for folder in (sys.prefix, sys.base_prefix, "/proc", "/sys", "/dev")]
    installed = not INSTALLED.isdisjoint(path.parts)
    return path.is_file() and not installed and not any(path.is_relative_to(folder) for folder in (*ours, *others))
