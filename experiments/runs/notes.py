"""Notes for people, on standard error: what stands behind an answer, beside it."""

import sys
from collections.abc import Callable, Iterable

OnNote = Callable[[str], None]


def print_note(text: str) -> None:
    """Print a note at once."""
    print(f"testbed: note: {text}", file=sys.stderr, flush=True)


def no_note(text: str) -> None:
    """Leaves a note out, which another run has printed."""


def print_notes(texts: Iterable[str]) -> list[str]:
    """Print each different note once; these notes."""
    once = [*dict.fromkeys(texts)]
    for text in once:
        print_note(text)
    return once
