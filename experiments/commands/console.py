"""The terminal; in a file or a pipe, lines are wide enough for every table, or as wide as COLUMNS says."""

import os
import sys
from collections.abc import Iterable
from typing import NoReturn

from rich.console import Console
from rich.table import Table

WIDTH = 180


class Piped(Console):
    """A console that raises BrokenPipeError when its reader has closed; rich would exit."""

    def on_broken_pipe(self) -> NoReturn:
        """Called by rich while it handles the error."""
        raise BrokenPipeError


def wide_console() -> Console:
    """A console for standard output, which prints text unchanged."""
    width = None if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit() else WIDTH
    return Piped(width=width, soft_wrap=True, markup=False, emoji=False, highlight=False)


def plain_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    """A table without lines."""
    table = Table(*head, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    return table
