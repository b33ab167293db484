"""The import path of a command: a user's modules are found in the working folder, after all
others.
"""

import os
import sys

from testbed.core.errors import InputError

ROOT = os.path.realpath(os.path.dirname(os.path.dirname(str(sys.modules["testbed"].__file__))))


def prepare_working_folder() -> None:
    """Put the working folder last, in this process and in those that a launcher starts."""
    try:
        here = os.getcwd()
    except FileNotFoundError:
        raise InputError(
            "the working folder: has been deleted (change to one that exists)"
        ) from None
    put_last(here)
    os.environ["PYTHONSAFEPATH"] = "1"  # else `python -m`, which starts workers, would put it first
    if os.path.realpath(here) == ROOT:  # a source tree that is not installed
        known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*filter(None, known), here]))
        return
    for name in ("testbed.py", os.path.join("testbed", "__init__.py")):
        if os.path.isfile(os.path.join(here, name)):
            print(
                f"testbed: note: {name} is not imported, for testbed has a package of this name",
                file=sys.stderr,
            )


def put_last(folder: str) -> None:
    """Put a folder last on the import path; the source tree keeps its place."""
    if os.path.realpath(folder) != ROOT:
        sys.path[:] = [
            entry for entry in sys.path if os.path.realpath(entry) != os.path.realpath(folder)
        ]
    if folder not in sys.path:
        sys.path.append(folder)
