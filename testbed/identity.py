"""The id of a run: one hash of its configuration, of the files and plug-ins that it names, and of
the package's own source.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from testbed.config import RunConfig
from testbed.parts import Part, locate
from testbed.plug_in_sources import plug_in_files

ROOT = Path(__file__).parent
# Folders below the package that make a simulated result; they are hashed apart, and links in them
# are not followed.
CODE = ("", "traces", "experiments/runs")
LINKED = ("kernels", "traces", "experiments")
ENGINE = "kernels"  # makes the result of a run on a GPU too
SOURCES = {".py", ".json", ".csv", ".toml", ".cu", ".cuh"}
MAX_PATH = 4096


@dataclass(frozen=True)
class Identity:
    """The id of a run, and the SHA-256 of everything besides the configuration that it covers.

    inputs: `files` by path as the configuration names them, plug-in `modules` by name, and `code`
    of the package by folder.
    """

    id: str
    inputs: Mapping[str, Mapping[str, str]]


def identify(config: RunConfig) -> Identity:
    """The identity of a run; its ids are equal exactly for runs that would give the same result."""
    code = {"simulator": code_hash()}
    if config.engine:
        code[ENGINE] = folder_hash(ROOT / ENGINE)
    inputs = {
        "files": {name: content_hash(path) for name, path in sorted(input_files(config))},
        "modules": {name: content_hash(path) for name, path in sorted(modules_of(config))},
        "code": code,
    }
    return Identity(id_of(config.values, inputs), inputs)


def run_id(config: RunConfig) -> str:
    """The id of a run alone."""
    return identify(config).id


def id_of(values: Mapping[str, Any], inputs: Mapping[str, Any]) -> str:
    """Sixteen hexadecimal digits of the plain values of a configuration and the recorded inputs."""
    text = json.dumps([values, inputs], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def input_files(config: RunConfig) -> Iterator[tuple[str, Path]]:
    """The data files that the configuration names, those of folders included, by path."""
    for name, part in config.parts.items():
        yield from _files_of(part, name)
    for value in (config.server.gpu.transfers, config.engine and config.engine.weights):
        yield from _files_at(value)


def modules_of(config: RunConfig) -> Iterator[tuple[str, Path]]:
    """The source files of all plug-ins by module."""
    for part in config.parts.values():
        yield from _modules_of(part)


def _files_of(part: Part, key: str) -> Iterator[tuple[str, Path]]:
    for value in part.parameters.values():
        yield from _files_of(value, key) if isinstance(value, Part) else _files_at(value)
    if part.name.startswith("testbed."):  # a plug-in is not imported before it is made
        companions = getattr(locate(part.name, key), "companions", None)
        for path in companions(**part.parameters) if companions else ():
            yield from _files_at(str(path))


def _modules_of(part: Part) -> Iterator[tuple[str, Path]]:
    yield from plug_in_files(part.name).items()
    for value in part.parameters.values():
        if isinstance(value, Part):
            yield from _modules_of(value)


def _files_at(value: Any) -> Iterator[tuple[str, Path]]:
    """The file of this path, all files of the folder; none where the value is no such path."""
    if isinstance(value, list | tuple):
        for entry in value:
            yield from _files_at(entry)
    elif isinstance(value, str | Path) and _may_be_path(str(value)):
        path = Path(value)
        if path.is_file():
            yield str(value), path
        elif path.is_dir():
            yield from ((str(file), file) for file in sorted(path.rglob("*")) if file.is_file())


def _may_be_path(text: str) -> bool:
    return 0 < len(text) < MAX_PATH and "\0" not in text


def content_hash(path: str | Path) -> str:
    """SHA-256 of a file's content; a file of the same size and time of change is read once."""
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
    for path in sorted(path for path in folder.rglob("*") if path.suffix in SOURCES):
        if folder == ROOT and path.relative_to(ROOT).parts[0] in LINKED:
            continue
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
