"""The source files of a plug-in: its module, and the modules beside it that it imports.

They are found in the text of the files, because importing a plug-in runs it. The standard library,
this package and other installed packages are left out; a plug-in of an installed package has all
files of that package.
"""

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

INSTALLED = {"site-packages", "dist-packages"}
STANDARD = Path(ast.__file__).parent  # the folder of Python's own library


def plug_in_files(target: str) -> dict[str, Path]:
    """The files of a class by module name; none for a class of this package or of Python."""
    top, module = target.partition(".")[0], target.rpartition(".")[0]
    place = _place_of(top) if module and top != "testbed" else None
    if place is None:
        return {}
    if not INSTALLED.isdisjoint(place.parts):
        return _installed_files(top, place)
    files, waiting = dict[str, Path](), [module]
    while waiting:
        name = waiting.pop()
        above = name.rpartition(".")[0]
        if above and above not in files:
            waiting.append(above)
        path = _module_file(place.parent, name)
        if path is not None and name not in files:
            files[name] = path
            waiting += imported_names(path, name)
    return dict(sorted(files.items()))


def imported_names(path: Path, name: str) -> list[str]:
    """The modules that the file of the module `name` may import, wherever it does so."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # loading the class reports the error
        return []
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    names = list[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _base_of(node, package)
            names += [base, *(f"{base}.{alias.name}".strip(".") for alias in node.names)]
    return [module for module in names if module]


def _base_of(node: ast.ImportFrom, package: str) -> str:
    """The module after `from`, with the package before the dots of a relative import."""
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    above = parts[: len(parts) - node.level + 1]
    return ".".join([*above, *filter(None, [node.module])])


def _place_of(top: str) -> Path | None:
    """The file or folder of a top-level module; None: there is none, or it is Python's."""
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    folders = list(spec.submodule_search_locations or ())
    if not folders and not spec.has_location:  # built in
        return None
    path = Path(folders[0] if folders else str(spec.origin))
    is_standard = path.is_relative_to(STANDARD) and INSTALLED.isdisjoint(path.parts)
    return None if is_standard else path


def _module_file(root: Path, name: str) -> Path | None:
    base = root.joinpath(*name.split("."))
    candidates = (base / "__init__.py", base.with_name(f"{base.name}.py"))
    return next((path for path in candidates if path.is_file()), None)


def _installed_files(name: str, place: Path) -> dict[str, Path]:
    if place.is_file():
        return {name: place}
    return dict(_named_files(name, place))


def _named_files(name: str, folder: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            yield f"{name}/{path.relative_to(folder)}", path
