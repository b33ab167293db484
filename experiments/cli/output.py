"""Output that several commands share: tables and lines for people, JSON for programs."""

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import asdict
from math import isfinite
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from rich.console import Console, RenderableType
    from rich.table import Table

WIDTH = 180


def wide_console() -> "Console":
    """A console for standard output, which prints text unchanged; in a file or a pipe, lines are
    wide enough for every table, or as wide as COLUMNS says.
    """
    from rich.console import Console

    class Piped(Console):
        def on_broken_pipe(self) -> NoReturn:  # rich would handle the error, and exit
            raise BrokenPipeError

    width = None if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit() else WIDTH
    return Piped(width=width, soft_wrap=True, markup=False, emoji=False, highlight=False)


def show(*parts: "str | RenderableType") -> None:
    """Print lines and tables to standard output."""
    for part in parts:
        wide_console().print(part)


def plain_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> "Table":
    """A table without lines, whose first column has names."""
    from rich.table import Table

    from testbed.experiments.runs.unbroken import unbroken

    table = Table(*head, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    return unbroken(table)


def print_json(answer: "DataclassInstance") -> None:
    """Print an answer of `json_answers` as JSON; a number that is not finite becomes null."""
    print(json.dumps(_finite(asdict(answer)), indent=1, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and not isfinite(value):
        return None
    return value
