"""Facts of the swept vLLM and machine, from folders of sweeps."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from testbed.core.errors import InputError

FACTS, ABOUT = "facts.json", "machine.json"
ENGINE = ("graph_sizes", "tensor_parallel_size", "async_scheduling")  # of FACTS
MACHINE = ("device", "host", "torch")  # of ABOUT, else of FACTS


class Swept(NamedTuple):
    """facts: options that the engine had, by vLLM's names. about: the machine and its software.
    Both are empty if no file says them.
    """

    facts: dict[str, Any]
    about: dict[str, Any]

    @property
    def fingerprint(self) -> dict[str, Any]:
        """The origin of a profile."""
        release = f" {self.about['vllm']}" if "vllm" in self.about else ""
        known = {key: self.about[key] for key in MACHINE if key in self.about}
        return {"source": "measured", "system": f"vLLM{release}", **known}


def read_swept(folders: Sequence[Path]) -> Swept:
    """Facts in the folders or beside them. Raises InputError if they differ, or were not
    scheduled asynchronously.
    """
    facts = _same(folders, FACTS, ENGINE)
    if not facts.get("async_scheduling", True):
        raise InputError(
            key="the iterations",
            problem="were not scheduled asynchronously, so the costs of launches are not modelled",
            remedy="leave --no-async-scheduling out",
        )
    about = _same(folders, FACTS, MACHINE) | _same(folders, ABOUT, ("vllm", *MACHINE))
    return Swept(facts, about)


def _same(folders: Sequence[Path], name: str, keys: Sequence[str]) -> dict[str, Any]:
    """These keys of the folders' files of this name, which agree."""
    described = dict[str, Any]()
    for path in _files(folders, name):
        for key, value in _object(path).items():
            if key in keys and described.setdefault(key, value) != value:
                raise InputError(
                    key=path,
                    problem=(
                        f"{key} is {value}, and {described[key]} in another folder (fit sweeps of "
                        "one engine at a time)"
                    ),
                )
    return described


def _files(folders: Sequence[Path], name: str) -> Iterator[Path]:
    """The file of this name in each folder, or else beside it, if there is one."""
    for folder in folders:
        for path in (folder / name, folder.parent / name):
            if path.is_file():
                yield path
                break


def _object(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(key=path, problem=f"is no JSON: {error}") from error
    if not isinstance(read, dict):
        raise InputError(key=path, problem="must be a JSON object")
    return read
