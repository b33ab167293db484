"""Arguments and output that several commands share. What only their work needs is imported after
parsing.
"""

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

import yaml

from testbed.command_line import Parser
from testbed.core.errors import InputError
from testbed.core.units import LAST_S

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

Number = TypeVar("Number", int, float)
WIDTH = 180
FORMATS = (".pdf", ".png", ".svg")  # of pictures
PLACE = re.compile(r"\{([\w.]+:\w+)\}")


def _number(
    convert: Callable[[str], Number], fits: Callable[[Number], bool], kind: str
) -> Callable[[str], Number]:
    def parsed(text: str) -> Number:
        with suppress(ValueError):
            if fits(value := convert(text)):
                return value
        raise argparse.ArgumentTypeError(f"{text!r} is not {kind}")

    return parsed


TYPES: dict[str, Callable[[str], Any]] = {
    "path": Path,
    "int": int,
    "float": float,
    "at_least_one": _number(int, lambda value: value >= 1, "a whole number of at least 1"),
    "above_zero": _number(float, lambda value: 0 < value < float("inf"), "a number above 0"),
    "seconds": _number(
        float, lambda value: 0 <= value <= LAST_S, f"a number of seconds from 0 to {LAST_S:,}"
    ),
}


class Command(NamedTuple):
    """An entry of commands.yaml."""

    function: str
    about: str
    description: str
    arguments: dict[str, dict[str, Any]]


@cache
def commands() -> dict[str, Command]:
    """All commands by name."""
    loader = getattr(
        yaml, "CSafeLoader", yaml.SafeLoader
    )  # in C where it is installed, which is six times as fast
    modules = yaml.load(Path(__file__).with_name("commands.yaml").read_text("utf-8"), loader)
    return {
        name: _command(module, name, **one)
        for module, entries in modules.items()
        for name, one in entries.items()
    }


def _command(
    module: str, name: str, /, about: str, description: str = "", **arguments: Any
) -> Command:
    function = "main" if module.endswith(f".{name}") else name.replace("-", "_")
    return Command(f"testbed.{module}:{function}", about, description, arguments)


def parser(name: str) -> Parser:
    """The parser of a command, as commands.yaml describes it."""
    command = commands()[name]
    this = Parser(
        name,
        f"{command.about[0].upper()}{command.about[1:]}. {command.description}",
        add_help=name != "run",
    )
    for names, options in command.arguments.items():
        known: dict[str, Any] = {
            key: TYPES[value] if key == "type" else value for key, value in options.items()
        }
        known["help"] = PLACE.sub(_names, options.get("help", ""))
        if options.get("default") not in (None, "", []):
            known["help"] += " (default: %(default)s)"
        this.add_argument(*names.split(), **known)
    return this


def parsed(name: str, argv: list[str]) -> argparse.Namespace | list[str]:
    """The options of a command line, its words in any order; or argv, where commands.yaml has no
    arguments.
    """
    return parser(name).parse_intermixed_args(argv) if commands()[name].arguments else argv


def _names(place: re.Match[str]) -> str:
    found = resolve_name(f"testbed.{place[1]}")
    return ", ".join(found() if callable(found) else found)


def window(options: argparse.Namespace) -> tuple[float, float | None]:
    """The interval [start, stop) in s; stop None means the end of the run."""
    if options.stop is not None and options.stop <= options.start:
        raise InputError(f"--from {options.start:g} --to {options.stop:g}: is an empty interval")
    return options.start, options.stop


def wide_console() -> "Console":
    """A console for standard output, which prints text unchanged; in a file or a pipe, lines are
    wide enough for every table, or as wide as COLUMNS says.
    """
    from rich.console import Console

    class Piped(Console):
        def on_broken_pipe(
            self,
        ) -> NoReturn:  # rich calls it while it handles the error, and would exit
            raise BrokenPipeError

    width = None if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit() else WIDTH
    return Piped(width=width, soft_wrap=True, markup=False, emoji=False, highlight=False)


def show(*parts: "str | RenderableType") -> None:
    """Print lines and tables to standard output."""
    for part in parts:
        wide_console().print(part)


def plain_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> "Table":
    """A table without lines."""
    from rich.table import Table

    table = Table(*head, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    return table
