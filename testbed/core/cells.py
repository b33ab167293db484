"""Text in the cells of CSV files, so that a spreadsheet takes no cell for a formula.

Names come from files of others, and a spreadsheet computes a cell that begins with = + - or @;
some skip a tab or an end of line before it. Such a text gets a quote before it when it is written,
and loses it when it is read. A text that begins with quotes and then with such a character gets
one more, so that every text is read back as it was. Numbers stay numbers, also with a unit behind
a space (`-0.72 points`): without an operator, a bracket or a bar there is nothing to compute.
"""

import csv
import re
from collections.abc import Iterable
from typing import Literal

FORMULA = re.compile(r"'*[=+\-@\t\r\n]")
NUMBER = re.compile(r"[+-]?(\d[\d,]*\.?\d*|\.\d+)([eE][+-]?\d+)?(%| [a-z]+)?")


def guarded(value: object) -> object:
    """The text that is written for a cell: the value itself if it is no text, or no formula."""
    if isinstance(value, str) and FORMULA.match(value) and not NUMBER.fullmatch(value):
        return f"'{value}"
    return value


def unguarded(value: object) -> object:
    """The text that was written: the inverse of `guarded`."""
    if isinstance(value, str) and value.startswith("'") and FORMULA.match(value):
        return value[1:]
    return value


def quoting(values: Iterable[object]) -> Literal[0, 2]:
    """The quoting of a table with these cells. A carriage return, of which a spreadsheet makes a
    new row, is quoted by no other way than by quoting every text.
    """
    has_return = any(isinstance(value, str) and "\r" in value for value in values)
    return csv.QUOTE_NONNUMERIC if has_return else csv.QUOTE_MINIMAL
