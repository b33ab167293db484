"""The terminal; where output goes to a file or a pipe, lines are wide enough for every table."""

import sys

from rich.console import Console

WIDTH = 180


def wide_console() -> Console:
    """A console for standard output."""
    return Console(width=None if sys.stdout.isatty() else WIDTH, soft_wrap=True)
