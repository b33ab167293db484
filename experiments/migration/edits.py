"""Replacements in a text at known places, so that comments and layout stay."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple


class Edit(NamedTuple):
    """`old` stands at character `start` of the text and becomes `new`."""

    start: int
    old: str
    new: str


class Note(NamedTuple):
    """A line that a person has to look at, and why."""

    line: int
    reason: str


@dataclass(frozen=True)
class Migrated:
    """A text with its edits made, the edits by line, and the lines that need a change by hand."""

    text: str
    changes: tuple[tuple[int, str, str], ...]
    by_hand: tuple[Note, ...] = field(default=())


def migrated(text: str, edits: Iterable[Edit], by_hand: Iterable[Note] = ()) -> Migrated:
    """The text with all edits made."""
    parts, place, changes = [], 0, []
    for start, old, new in sorted(set(edits)):
        assert text[start : start + len(old)] == old, f"{old!r} does not stand at {start}"
        changes.append((text.count("\n", 0, start) + 1, old, new))
        parts += [text[place:start], new]
        place = start + len(old)
    return Migrated("".join([*parts, text[place:]]), tuple(changes), tuple(sorted(set(by_hand))))
