"""The import path of a command: the working folder comes last, if the words name a plug-in."""

import os
import sys
from collections.abc import Sequence

from testbed.core.errors import InputError
from testbed.experiments.runs.choice_names import CLASS
from testbed.experiments.runs.notes import print_note

ROOT = os.path.realpath(os.path.dirname(os.path.dirname(str(sys.modules["testbed"].__file__))))


def prepare_working_folder(words: Sequence[str]) -> None:
    """Put the working folder last on the import path if the words name a plug-in, else remove it.

    This holds for this process and for those that a launcher starts. Without it, a command that
    only reads files in a folder could run modules beside them: libraries import optional packages,
    such as numexpr, and plug-ins of Hydra wherever they find them.
    """
    try:
        here = os.getcwd()
    except FileNotFoundError:
        raise InputError(
            key="the working folder", problem="has been deleted", remedy="change to one that exists"
        ) from None
    if names_a_plug_in(words):
        put_last(here)
    else:
        remove(here)
    os.environ["PYTHONSAFEPATH"] = "1"  # else `python -m`, which starts workers, would put it first
    if os.path.realpath(here) == ROOT:  # a source tree that is not installed
        folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*filter(None, folders), here]))
        return
    for name in ("testbed.py", os.path.join("testbed", "__init__.py")):
        if os.path.isfile(os.path.join(here, name)):
            print_note(f"{name} is not imported, for testbed has a package of this name")


def names_a_plug_in(words: Sequence[str]) -> bool:
    """True if a command line names a class that may be in the working folder, or a folder of
    options that do.
    """
    parts = [part for word in words for part in word.split()]
    is_of_files = any("_target_" in part or part.startswith("--config-dir") for part in parts)
    return words[:1] == ["check"] or is_of_files or bool(plug_ins_in(parts))


def plug_ins_in(words: Sequence[str]) -> list[str]:
    """Every MODULE:CLASS among the values of these words, several in a sweep."""
    values = [value for word in words for value in word.rpartition("=")[2].split(",")]
    return list(filter(CLASS.fullmatch, values))


def put_last(folder: str) -> None:
    """Put a folder last on the import path; the source tree keeps its place."""
    if os.path.realpath(folder) != ROOT:
        sys.path[:] = [
            entry for entry in sys.path if os.path.realpath(entry) != os.path.realpath(folder)
        ]
    if folder not in sys.path:
        sys.path.append(folder)


def enter(folder: str, words: Sequence[str]) -> None:
    """Go to a command's working folder, in a process of its launcher, for a run of these words."""
    os.chdir(folder)
    if names_a_plug_in(words):
        put_last(folder)


def remove(folder: str) -> None:
    """Remove a folder from the import path, unless it is the source tree or in PYTHONPATH."""
    kept = [ROOT, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    place = os.path.realpath(folder)
    if place not in map(os.path.realpath, kept):
        sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != place]
