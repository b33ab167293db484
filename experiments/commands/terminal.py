"""Arguments and output that several commands share. What only their work needs is imported after parsing."""

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn, TypeVar

from testbed.command_line import Parser as Parser
from testbed.core.errors import InputError
from testbed.schema import LAST_S

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Number = TypeVar("Number", int, float)
WIDTH = 180
FORMATS = (".pdf", ".png", ".svg")  # of pictures


def _number(convert: Callable[[str], Number], fits: Callable[[Number], bool], kind: str) -> Callable[[str], Number]:
    def parsed(text: str) -> Number:
        with suppress(ValueError):
            if fits(value := convert(text)):
                return value
        raise argparse.ArgumentTypeError(f"{text!r} is not {kind}")

    return parsed


at_least_one = _number(int, lambda value: value >= 1, "a whole number of at least 1")
above_zero = _number(float, lambda value: 0 < value < float("inf"), "a number above 0")
seconds = _number(float, lambda value: 0 <= value <= LAST_S, f"a number of seconds from 0 to {LAST_S:,}")


def add_window(this: Parser, verb: str = "") -> None:
    """Add --from and --to, which select a part of a run."""
    this.add_argument("--from", dest="start", metavar="S", type=seconds, default=0.0, help=f"{verb}from this second on")
    this.add_argument("--to", dest="stop", metavar="S", type=seconds, help=f"{verb}up to this second; default: the end")


def window(options: argparse.Namespace) -> tuple[float, float | None]:
    """The interval [start, stop) in s; stop None means the end of the run."""
    if options.stop is not None and options.stop <= options.start:
        raise InputError(f"--from {options.start:g} --to {options.stop:g}: is an empty interval")
    return options.start, options.stop


def wide_console() -> "Console":
    """A console for standard output, which prints text unchanged; in a file or a pipe, lines are wide enough for every
    table, or as wide as COLUMNS says."""
    from rich.console import Console

    class Piped(Console):
        def on_broken_pipe(self) -> NoReturn:  # rich calls it while it handles the error, and would exit
            raise BrokenPipeError

    width = None if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit() else WIDTH
    return Piped(width=width, soft_wrap=True, markup=False, emoji=False, highlight=False)


def plain_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> "Table":
    """A table without lines."""
    from rich.table import Table

    table = Table(*head, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    return table
