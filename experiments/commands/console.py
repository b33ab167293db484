"""The terminal; where output goes to a file or a pipe, lines are wide enough for every table."""

import sys
from typing import NoReturn

from rich.console import Console

WIDTH = 180


class Piped(Console):
    """A console that says when its reader has gone; rich itself would exit, as only plug-ins do."""

    def on_broken_pipe(self) -> NoReturn:
        """Called by rich while it handles the error."""
        raise BrokenPipeError


def wide_console() -> Console:
    """A console for standard output."""
    return Piped(width=None if sys.stdout.isatty() else WIDTH, soft_wrap=True)
