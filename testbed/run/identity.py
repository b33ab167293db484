"""The id of a run: one hash of its configuration, of the files and plug-ins that it names, and of
the package's own source.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from testbed.core.content_hash import content_hash
from testbed.run.config import RunConfig
from testbed.run.parts import Part, locate
from testbed.run.plug_in_sources import plug_in_files

ROOT = Path(__file__).parents[1]
# Folders below the package that make a simulated result; they are hashed apart, and links in them
# are not followed.
CODE = ("", "traces", "experiments/runs")
LINKED = ("kernels", "traces", "experiments")
ENGINE = "kernels"  # makes the result of a run on a GPU too
SOURCES = {".py", ".json", ".csv", ".toml", ".cu", ".cuh"}


class Identity(NamedTuple):
    """The id of a run, and the SHA-256 of everything besides the configuration that it covers.

    inputs: `files` by path as the configuration names them, plug-in `modules` by name, and `code`
    of the package by folder.
    """

    id: str
    inputs: Mapping[str, Mapping[str, str]]


def identify(config: RunConfig) -> Identity:
    """The identity of a run; its ids are equal exactly for runs that would give the same result."""
    files = dict[str, Path]()
    if config.engine is not None:
        files |= files_at(config.engine.weights) | files_at(config.engine.draft_weights)
    for server in (config.server, *(config.servers or {}).values()):
        files |= dict(files_at(server.gpu.transfers))
    modules = dict[str, Path]()
    for _, part in config.all_parts:
        files |= files_of(part)
        modules |= plug_in_files(part.name)
    code = {"simulator": code_hash()}
    if config.engine:
        code[ENGINE] = folder_hash(ROOT / ENGINE)
    inputs = {
        "files": {name: content_hash(path) for name, path in sorted(files.items())},
        "modules": {name: content_hash(path) for name, path in sorted(modules.items())},
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


def files_of(part: Part) -> dict[str, Path]:
    """The data files that the parameters of a part name, and those that it reads beside them."""
    files = dict[str, Path]()
    for value in part.parameters.values():
        files |= files_at(value)
    if files and part.name.startswith("testbed."):  # a plug-in is not imported before it is made
        companions = getattr(locate(part.name, "part"), "companions", None)
        for path in companions(**part.parameters) if companions else ():
            files |= files_at(str(path))
    return files


def files_at(value: Any) -> dict[str, Path]:
    """The file of this path, all files of the folder; none if the value is no such path."""
    if isinstance(value, list | tuple):
        return {name: path for entry in value for name, path in files_at(entry).items()}
    text = str(value) if isinstance(value, str | Path) else ""
    if os.path.isfile(text):  # Path.is_file raises for a text that cannot be a path
        return {text: Path(text)}
    below = sorted(Path(text).rglob("*")) if os.path.isdir(text) else ()
    return {str(file): file for file in below if file.is_file()}


@cache
def code_hash() -> str:
    """SHA-256 over the code and data that make a simulated result: a changed simulator is another
    experiment.
    """
    return hashlib.sha256("".join(folder_hash(ROOT / name) for name in CODE).encode()).hexdigest()


@cache
def folder_hash(folder: Path) -> str:
    """SHA-256 over the sources and data files in a folder and below it."""
    paths = list[str]()  # by strings, as pathlib takes 30 ms for them
    for place, folders, names in os.walk(folder):
        if place == str(ROOT):
            folders[:] = [name for name in folders if name not in LINKED]
        ours = (name for name in names if os.path.splitext(name)[1] in SOURCES)
        paths += [os.path.join(place, name) for name in ours]
    digest, above = hashlib.sha256(), len(os.path.join(folder, ""))
    for path in sorted(paths):
        with open(path, "rb") as file:
            digest.update(path[above:].encode() + b"\0" + file.read())
    return digest.hexdigest()
