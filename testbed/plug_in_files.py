"""The source files of a plug-in class: its module and the modules that its `import` statements name, recursively.

No module is executed. The standard library, this package and installed packages are left out. For a class of an
installed package the result is all files of that package.
"""

import importlib.util
import sys
from contextlib import suppress
from modulefinder import ModuleFinder
from pathlib import Path

INSTALLED = {"site-packages", "dist-packages"}
STANDARD = str(Path(importlib.util.__file__).parents[1])


def plug_in_files(target: str) -> dict[str, Path]:
    """The files of a class by module name; none for a class of this package."""
    top, module = target.partition(".")[0], target.rpartition(".")[0]
    if top == "testbed" or not module:
        return {}
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return {}
    if spec is not None and spec.origin and not INSTALLED.isdisjoint(Path(spec.origin).parts):
        return _installed_files(top, Path(spec.origin))
    finder = ModuleFinder([path for path in sys.path if _is_user_supplied(path)], excludes=["testbed"])
    with suppress(ImportError, SyntaxError, ValueError):  # loading the class reports the error
        finder.import_hook(module)
    found = ((name, getattr(module, "__file__", None)) for name, module in sorted(finder.modules.items()))
    return {name: Path(path) for name, path in found if path}


def _is_user_supplied(folder: str) -> bool:
    return INSTALLED.isdisjoint(Path(folder).parts) and not str(Path(folder).resolve()).startswith(STANDARD)


def _installed_files(name: str, path: Path) -> dict[str, Path]:
    """All files of an installed package, or the file of an installed module."""
    if path.name != "__init__.py":
        return {name: path}
    files = [file for file in sorted(path.parent.rglob("*")) if file.is_file() and file.suffix != ".pyc"]
    return {f"{name}/{file.relative_to(path.parent)}": file for file in files}
