"""The name of a run: a hash of its configuration, of the files that it reads and of the code that
makes its result.
"""

import hashlib
import importlib.util
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any

from testbed.config import RunConfig
from testbed.parts import Part, locate

ROOT = Path(__file__).parent
CODE = (
    "",
    "traces",
    "experiments/runs",
)  # folders below the package; the links in it are not followed
ENGINE = "kernels"  # what else a run on a GPU depends on
INSTALLED = {"site-packages", "dist-packages"}
STANDARD = str(Path(importlib.util.__file__).parents[1])


def run_id(config: RunConfig) -> str:
    """Sixteen hexadecimal digits; equal exactly for runs that would give the same result."""
    files = {name: content_hash(path) for name, path in sorted(input_files(config))}
    code = [code_hash(), *([folder_hash(ROOT / ENGINE)] if config.engine else [])]
    text = json.dumps([config.values, files, code], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def input_files(config: RunConfig) -> Iterator[tuple[str, Path]]:
    """What the run reads, by name: data files and folders by path, the source of plug-ins by
    module.
    """
    for name, part in config.parts.items():
        yield from _files_of(part, name)
    if config.engine:
        yield from _data(config.engine.weights)


def _files_of(part: Part, key: str) -> Iterator[tuple[str, Path]]:
    for value in part.parameters.values():
        yield from _files_of(value, key) if isinstance(value, Part) else _data(value)
    yield from ((f"module {name}", path) for name, path in plug_in_files(part.name).items())
    if part.name.startswith("testbed."):  # a plug-in is not imported before it is made
        companions = getattr(locate(part.name, key), "companions", None)
        for path in companions(**part.parameters) if companions else ():
            yield from _data(str(path))


def _data(value: Any) -> Iterator[tuple[str, Path]]:
    if isinstance(value, list | tuple):
        for one in value:
            yield from _data(one)
    elif isinstance(value, str | Path) and 0 < len(str(value)) < 4096 and "\0" not in str(value):
        path = Path(value)
        if path.is_file():
            yield str(value), path
        elif path.is_dir():
            yield from ((str(file), file) for file in sorted(path.rglob("*")) if file.is_file())


def content_hash(path: str | Path) -> str:
    stat = Path(path).stat()
    return _content_hash(str(path), stat.st_size, stat.st_mtime_ns)


@cache
def _content_hash(path: str, size: int, mtime_ns: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@cache
def code_hash() -> str:
    """SHA-256 over the code and data that make a simulated result: a changed simulator is another
    experiment.
    """
    return hashlib.sha256("".join(folder_hash(ROOT / name) for name in CODE).encode()).hexdigest()


@cache
def folder_hash(folder: Path) -> str:
    """SHA-256 over the sources and data files in a folder and below it."""
    digest = hashlib.sha256()
    for path in sorted(
        one for one in folder.rglob("*") if one.suffix in (".py", ".json", ".cu", ".cuh")
    ):
        if folder == ROOT and path.relative_to(ROOT).parts[0] in (
            "kernels",
            "traces",
            "experiments",
        ):
            continue
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def plug_in_files(target: str) -> dict[str, Path]:
    """The files of a class by module name: its module and those that `import` statements name, none
    of them executed.

    The standard library, this package and installed packages are left out; a class of an installed
    package has all files of that package.
    """
    top, module = target.partition(".")[0], target.rpartition(".")[0]
    if top == "testbed" or not module:
        return {}
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return {}
    if spec is not None and spec.origin and not INSTALLED.isdisjoint(Path(spec.origin).parts):
        return _installed_files(top, Path(spec.origin))
    finder = ModuleFinder(
        [path for path in sys.path if _is_user_supplied(path)], excludes=["testbed"]
    )
    with suppress(ImportError, SyntaxError, ValueError):  # loading the class reports the error
        finder.import_hook(module)
    found = (
        (name, getattr(module, "__file__", None)) for name, module in sorted(finder.modules.items())
    )
    return {name: Path(path) for name, path in found if path}


def _is_user_supplied(folder: str) -> bool:
    return INSTALLED.isdisjoint(Path(folder).parts) and not str(Path(folder).resolve()).startswith(
        STANDARD
    )


def _installed_files(name: str, path: Path) -> dict[str, Path]:
    if path.name != "__init__.py":
        return {name: path}
    files = [
        file for file in sorted(path.parent.rglob("*")) if file.is_file() and file.suffix != ".pyc"
    ]
    return {f"{name}/{file.relative_to(path.parent)}": file for file in files}
