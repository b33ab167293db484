"""The working folder: plug-ins that lie there import, but nothing there comes before what is installed.

Imports only what Python has loaded by itself, because a module of the working folder could still be in front.
"""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
OURS = ("testbed", "traces", "kernels", "experiments")


def prepare_working_folder() -> None:
    """Put the working folder last, in this process and in those that a launcher starts."""
    try:
        here = os.getcwd()
    except FileNotFoundError:
        from testbed.core.errors import InputError

        raise InputError("the working folder has been deleted; change to one that exists") from None
    put_last(here)
    os.environ["PYTHONSAFEPATH"] = "1"  # or `python -m`, which starts workers, would put it first
    if os.path.realpath(here) == ROOT:  # a source tree that nobody has installed
        known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*filter(None, known), here]))
    for name in ignored(here):
        print(f"testbed: note: {name} is not imported, for testbed has a package of this name", file=sys.stderr)


def put_last(folder: str) -> None:
    """Let modules of a folder be found where nothing else has their name; the source tree itself stays in its place."""
    if os.path.realpath(folder) != ROOT:
        sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != os.path.realpath(folder)]
    if folder not in sys.path:
        sys.path.append(folder)


def ignored(folder: str) -> list[str]:
    """Modules of a folder that have the name of one of our packages."""
    if os.path.realpath(folder) == ROOT:
        return []
    modules = [module for name in OURS for module in (f"{name}.py", os.path.join(name, "__init__.py"))]
    return [module for module in modules if os.path.isfile(os.path.join(folder, module))]
