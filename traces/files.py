"""Text and tables from files, gzip included; whatever is wrong with them becomes one clear line."""

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO, cast

import numpy as np
from numpy.typing import NDArray

from testbed.core.errors import InputError
from testbed.core.request import Column

MAX_LEN = 2**31 - 1
PROBLEMS: tuple[tuple[type[Exception], str], ...] = (
    (FileNotFoundError, "no such file; give its path from the folder where you run"),
    (IsADirectoryError, "is a folder; name the file in it"),
    (PermissionError, "may not be read; change its permissions"),
    (EOFError, "the gzip file is truncated; copy or download it again"),
    (gzip.BadGzipFile, "not a sound gzip file; if it is plain text, drop .gz from its name, else download it again"),
    (zlib.error, "the gzip file is damaged; copy or download it again"),
    (UnicodeDecodeError, "not UTF-8 text; if it is gzip, its name must end in .gz"),
    (csv.Error, "not a CSV file; save it with commas and one header line"),
)


@contextmanager
def open_text(path: str) -> Iterator[TextIO]:
    """The text of a file, of a gzip file where the name ends in .gz; trouble on the way is an InputError."""
    try:
        with _open(path) as file:
            yield file
    except tuple(kind for kind, _ in PROBLEMS) as error:
        problem = next(text for kind, text in PROBLEMS if isinstance(error, kind))
        raise InputError(f"{path}: {problem}") from error


def _open(path: str) -> TextIO:
    if path.endswith(".gz"):
        return cast(TextIO, gzip.open(path, "rt", encoding="utf-8-sig", newline=""))
    return open(path, encoding="utf-8-sig", newline="")


def read_table(path: str, names: Sequence[str], optional: Sequence[str] = ()) -> dict[str, list[str]]:
    """The named columns of a CSV with a header line, as text; an optional one is left out where the file has none."""
    csv.field_size_limit(MAX_LEN)  # content ids of one prompt are one field
    with open_text(path) as file:
        lines = list(csv.reader(file))
    while lines and not lines[-1]:
        lines.pop()
    if len(lines) < 2:
        raise InputError(f"{path}: {'has a header but no rows' if lines else 'is empty'}; give a file with rows")
    header = [name.strip() for name in lines[0]]
    for number, line in enumerate(lines[1:], start=2):
        if len(line) != len(header):
            raise InputError(f"{path}, line {number}: {len(line)} fields where the header has {len(header)}")
    present = [*names, *(name for name in optional if name in header)]
    twice = next((name for name in present if header.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{path}: two columns are named {twice!r}; rename or remove one of them")
    return {name: _column(path, header, name, lines) for name in present}


def _column(path: str, header: list[str], name: str, lines: list[list[str]]) -> list[str]:
    if name not in header:
        found = ", ".join(header)
        raise InputError(f"{path}: no column {name!r}; it has {found}. Name the right one in the trace's config")
    place = header.index(name)
    return [line[place] for line in lines[1:]]


def lengths(path: str, column: str, texts: Sequence[str]) -> Column:
    """A column of token counts; each must be a whole number of at least 1."""
    values = numbers(texts)
    sound = (values >= 1) & (values <= MAX_LEN) & (values == np.floor(values))
    require(path, column, texts, sound, "a whole number of tokens, at least 1")
    return values.astype(np.int64)


def seconds(path: str, column: str, texts: Sequence[str]) -> NDArray[np.float64]:
    """A column of times in seconds."""
    values = numbers(texts)
    require(path, column, texts, np.isfinite(values), "a time in seconds")
    return values


def require(path: str, column: str, texts: Sequence[str], sound: NDArray[np.bool_], wanted: str) -> None:
    """Every text of the column must be sound; the first that is not is named with its line."""
    if not sound.all():
        row = int(np.argmin(sound))
        text = texts[row][:40]
        raise InputError(f"{path}, line {row + 2}, column {column}: {text!r} is not {wanted}; mend or remove the line")


def numbers(texts: Sequence[str]) -> NDArray[np.float64]:
    """Texts as numbers; what is none becomes NaN."""
    try:
        return np.array(texts, dtype=np.float64)
    except ValueError:
        return np.array([_number(text) for text in texts])


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def read_json(path: str) -> Any:
    """The content of one JSON file."""
    with open_text(path) as file:
        try:
            return json.load(file)
        except json.JSONDecodeError as error:
            hint = "not valid JSON, or cut short; copy or download it again"
            raise InputError(f"{path}, line {error.lineno}: {hint}") from error


def json_lines(path: str, problem: Callable[[Any], str | None] = lambda item: None) -> Iterator[tuple[int, Any]]:
    """The items of a file with one JSON value a line, each with its line's number; empty lines do not count.

    problem says what is wrong with an item, None for nothing; the first that is wrong is an InputError with its line.
    """
    with open_text(path) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                item = json.loads(line)
            except json.JSONDecodeError as error:
                hint = "not valid JSON, or cut short; copy or download the file again"
                raise InputError(f"{path}, line {number}: {hint}") from error
            wrong = problem(item)
            if wrong:
                raise InputError(f"{path}, line {number}: {wrong}; mend or remove the line")
            yield number, item
