"""The name of a run: a hash of its config, of the files that it reads and of the code that it runs."""

import hashlib
import json
from collections.abc import Iterator
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from experiments.runs.plug_in_files import plug_in_files

SIMULATOR = ("testbed", "traces")


def plain(config: DictConfig) -> dict[str, Any]:
    """The resolved config as plain values, without Hydra's own part."""
    own = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    values = OmegaConf.to_container(own, resolve=True, throw_on_missing=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def run_id(config: DictConfig) -> str:
    """Sixteen hexadecimal digits; equal exactly for runs that would give the same result."""
    values = plain(config)
    files = {name: content_hash(path) for name, path in sorted(input_files(values))}
    text = json.dumps([values, files, simulator_hash()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def input_files(value: Any) -> Iterator[tuple[str, str]]:
    """Files that the config names, and what to call them: data by path, the source of plug-ins by module."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from (_source_files(str(item)) if key == "_target_" else input_files(item))
    elif isinstance(value, list):
        for item in value:
            yield from input_files(item)
    elif isinstance(value, str) and len(value) < 4096 and "\0" not in value and Path(value).is_file():
        yield value, value


def _source_files(target: str) -> Iterator[tuple[str, str]]:
    return ((f"module {name}", str(path)) for name, path in plug_in_files(target).items())


def content_hash(path: str) -> str:
    """SHA-256 of a file."""
    stat = Path(path).stat()
    return _content_hash(path, stat.st_size, stat.st_mtime_ns)


@cache
def _content_hash(path: str, size: int, mtime_ns: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@cache
def simulator_hash() -> str:
    """SHA-256 over the simulator's own code and data: a changed simulator is another experiment."""
    digest = hashlib.sha256()
    for package in SIMULATOR:
        root = Path(str(resources.files(package)))
        for path in sorted(p for p in root.rglob("*") if p.suffix in (".py", ".json")):
            digest.update(f"{package}/{path.relative_to(root)}".encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
