"""Every option of `sglang serve`: understood, harmless, of time alone, or refused."""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from testbed.core.errors import InputError
from testbed.sglang.command import ON, SERVE, Command

HARMLESS, TIME_ONLY = "harmless", "time_only"
REPLICAS = "--dp-size"  # overrides make them of any server
FILE = "--config"


class Reason(NamedTuple):
    """The reason why an option is ignored; is_time_only: it changes the time of iterations."""

    text: str
    is_time_only: bool


@cache
def understood() -> frozenset[str]:
    """The options whose values are read."""
    return frozenset(_file()["understood"])


@cache
def reasons() -> dict[str, Reason]:
    """The reasons for the other options that a command may have."""
    return {
        name: Reason(part["reason"], kind == TIME_ONLY)
        for kind in (HARMLESS, TIME_ONLY)
        for part in _file()[kind]
        for name in part["options"]
    }


def notes_of(command: Command, *, for_memory: bool) -> tuple[str, ...]:
    """Notes on options that change nothing. for_memory: only memory is asked for. Raises InputError
    for an option that changes the answer and is not modelled.
    """
    notes = []
    for name, value in command.values.items():
        if name in understood():
            continue
        reason = reasons().get(name)
        if reason is None or (reason.is_time_only and not for_memory):
            raise InputError(
                key=f"{SERVE}: {name}",
                problem="has no counterpart, and changes the result: it is not modelled",
                remedy=_way_out(name, value, for_memory=for_memory),
            )
        notes.append(f"{name if value == ON else f'{name} {value}'} ({reason.text})")
    for name in command.environment:
        if name.startswith("SGLANG_"):
            raise InputError(
                key=f"{SERVE}: {name}", problem="is not modelled", remedy="leave it out"
            )
        notes.append(f"{name} (the environment is not read)")
    return tuple(notes)


def _way_out(name: str, value: str, *, for_memory: bool) -> str:
    if name == FILE:
        return "write the options of the file into the command"
    is_several = name == REPLICAS and value.isdecimal() and int(value) > 1
    if is_several and not for_memory:
        return f"leave it out, and give replicas={value} router=round_robin"
    return "leave it out to see the server without it"


def _file() -> dict[str, Any]:
    path = Path(__file__).with_name("options.toml")
    values: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    return values
