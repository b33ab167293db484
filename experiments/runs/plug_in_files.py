"""The source files behind a plug-in class: its module and, as far as `import` statements say, all that it imports.

Nothing is executed. The standard library, the project's own packages and installed packages are left out, unless the
class itself is of an installed package: then all of that package's files count.
"""

import ast
import importlib.util
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

OURS = ("testbed", "traces", "experiments", "kernels")
INSTALLED = {"site-packages", "dist-packages"}


def plug_in_files(target: str) -> dict[str, Path]:
    """The files of a class by their modules' names; none for a class of the project's own."""
    found: dict[str, Path] = {}
    todo = [target]
    while todo:
        for name, spec in modules_of(todo.pop()):
            if name in found or not spec.origin or not Path(spec.origin).is_file():
                continue
            path = Path(spec.origin)
            if not INSTALLED.isdisjoint(path.parts):
                if target.startswith(f"{name}."):
                    found |= whole_package(name, path)
                break
            found[name] = path
            todo += imported(path, name if spec.submodule_search_locations is not None else name.rpartition(".")[0])
    return found


def modules_of(dotted: str) -> Iterator[tuple[str, ModuleSpec]]:
    """Every module on the way to a dotted name, packages first, without importing any."""
    parts = dotted.split(".")
    spec = _top(parts[0])
    for depth in range(1, len(parts) + 1):
        if spec is None:
            return
        name = ".".join(parts[:depth])
        yield name, spec
        inside = spec.submodule_search_locations
        if inside is None or depth == len(parts):
            return
        spec = PathFinder.find_spec(f"{name}.{parts[depth]}", list(inside))


def _top(name: str) -> ModuleSpec | None:
    if name in OURS or name in sys.stdlib_module_names:
        return None
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None


def imported(path: Path, package: str) -> list[str]:
    """Dotted names that a file imports, wherever it does so; relative ones count from its package."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # no Python source, or none that could run
        return []
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, package)
            names += [f"{base}.{alias.name}".strip(".") for alias in node.names if base or not node.level]
    return names


def _base(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    above = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join([*above, *filter(None, [node.module])])


def whole_package(name: str, path: Path) -> dict[str, Path]:
    """All files of an installed package, or the one of an installed module."""
    if path.name != "__init__.py":
        return {name: path}
    root = path.parent
    files = [file for file in sorted(root.rglob("*")) if file.is_file() and file.suffix != ".pyc"]
    return {f"{name}/{file.relative_to(root)}": file for file in files}
