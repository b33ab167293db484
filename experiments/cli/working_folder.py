"""The import path of a command: a user's modules are found in the working folder, after all
others, where the command line names one.
"""

import os
import sys
from collections.abc import Sequence

from testbed.core.errors import InputError
from testbed.trusted import CLASS, FLAG

ROOT = os.path.realpath(os.path.dirname(os.path.dirname(str(sys.modules["testbed"].__file__))))


def prepare_working_folder(words: Sequence[str]) -> None:
    """Put the working folder last on the import path where the words name a plug-in, else take it
    away, in this process and in those that a launcher starts.

    Who only reads files there has not chosen to run what lies beside them, and libraries import
    optional packages, such as numexpr, and plug-ins of Hydra wherever these are found.
    """
    try:
        here = os.getcwd()
    except FileNotFoundError:
        raise InputError(
            "the working folder: has been deleted (change to one that exists)"
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
            print(
                f"testbed: note: {name} is not imported, for testbed has a package of this name",
                file=sys.stderr,
            )


def names_a_plug_in(words: Sequence[str]) -> bool:
    """Whether a command line names a class that may be in the working folder, or trusts files that
    do.
    """
    parts = [part for word in words for part in word.split()]
    return words[:1] == ["check"] or any(map(_names_a_class, parts))


def _names_a_class(word: str) -> bool:
    """Whether a word trusts plug-ins, or has MODULE:CLASS among its values, several in a sweep."""
    values = word.rpartition("=")[2].split(",")
    return word == FLAG or "_target_" in word or any(map(CLASS.fullmatch, values))


def put_last(folder: str) -> None:
    """Put a folder last on the import path; the source tree keeps its place."""
    if os.path.realpath(folder) != ROOT:
        sys.path[:] = [
            entry for entry in sys.path if os.path.realpath(entry) != os.path.realpath(folder)
        ]
    if folder not in sys.path:
        sys.path.append(folder)


def remove(folder: str) -> None:
    """Take a folder away from the import path; the source tree, and what PYTHONPATH names, stay."""
    kept = [ROOT, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    place = os.path.realpath(folder)
    if place not in map(os.path.realpath, kept):
        sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != place]
