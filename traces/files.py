"""Text and tables from files, gzip included; every error becomes an InputError in one line."""

import csv
import gzip
import json
import math
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple, TextIO, cast

import numpy as np
from numpy.typing import NDArray

from testbed.core.errors import InputError
from testbed.core.request import Column

MAX_LEN = 2**31 - 1
ALIKE = 0.75  # similarity of names such as arrival_s and arrival_time, session and session_id
OTHER_NAMES = {  # of columns that a trace may have, in files of others and in our own requests.csv
    "arrival_s": ("timestamp", "time", "arrived_at", "arrival", "arrival_time"),
    "n": ("num_seqs", "num_seq", "num_sequences", "best_of"),
    "priority": ("prio",),
    "beam": ("use_beam_search",),
}
REMEDY = "rename or remove it"
MISSING = "rename one"
LATEST = 1e15  # the largest time in a file, in any unit; far above every real clock
PROBLEMS: tuple[tuple[type[Exception], str], ...] = (
    (FileNotFoundError, "no such file (give its path relative to the working folder)"),
    (IsADirectoryError, "is a folder (name the file in it)"),
    (PermissionError, "may not be read (change its permissions)"),
    (EOFError, "the gzip file is truncated (copy or download it again)"),
    (
        gzip.BadGzipFile,
        "not a valid gzip file (if it is plain text, drop .gz from its name, else download it "
        "again)",
    ),
    (zlib.error, "the gzip file is damaged (copy or download it again)"),
    (UnicodeDecodeError, "not UTF-8 text (if it is gzip, its name must end in .gz)"),
    (csv.Error, "not a CSV file (save it with commas and one header line)"),
)


@contextmanager
def open_text(path: str) -> Iterator[TextIO]:
    """Open a text file, or a gzip file if its name ends in .gz; errors become InputError."""
    packed = path.endswith(".gz")
    try:
        with cast(
            TextIO, (gzip.open if packed else open)(path, "rt", encoding="utf-8-sig", newline="")
        ) as file:
            yield file
    except tuple(kind for kind, _ in PROBLEMS) as error:
        problem = next(text for kind, text in PROBLEMS if isinstance(error, kind))
        raise InputError(key=path, problem=problem) from error


def read_table(
    path: str,
    names: Sequence[str],
    optional: Sequence[str] = (),
    ignored: Sequence[str] = (),
    remedy: str = REMEDY,
    missing: str = MISSING,
) -> dict[str, list[str]]:
    """The named columns of a CSV with a header line as text, and the optional ones that exist.

    ignored, remedy, missing: see places_of.
    """
    csv.field_size_limit(MAX_LEN)  # one field contains all content ids of a prompt
    with open_text(path) as file:
        lines = list(csv.reader(file))
    while lines and not lines[-1]:
        lines.pop()
    if len(lines) < 2:
        raise InputError(
            key=path,
            problem="has a header but no rows" if lines else "is empty",
            remedy="give a file with rows",
        )
    header = [name.strip() for name in lines[0]]
    _check_header(path, header)
    for number, line in enumerate(lines[1:], start=2):
        if len(line) != len(header):
            raise InputError(
                key=f"{path}, line {number}",
                problem=f"{len(line)} fields but the header has {len(header)}",
            )
    places = places_of(path, header, names, optional, ignored, remedy, missing)
    return {name: [line[place] for line in lines[1:]] for name, place in places.items()}


def read_header(path: str) -> list[str]:
    """The names in the first line of a CSV; none if the file is empty."""
    with open_text(path) as file:
        return [name.strip() for name in next(csv.reader(file), [])]


def _check_header(path: str, header: Sequence[str]) -> None:
    """Raise InputError for a file of another kind by its first line."""
    if not header:
        raise InputError(
            key=path, problem="its first line is empty", remedy="begin with the names of columns"
        )
    if header[0].startswith(("# HELP", "# TYPE")):
        raise InputError(
            key=path,
            problem="is a dump of metrics, which lists no requests",
            remedy=(
                "give a log of requests, or their lengths as a CSV; trace=random draws lengths "
                "around two means"
            ),
        )
    separator = next((mark for mark in (";", "\t") if len(header) == 1 and mark in header[0]), None)
    if separator:
        raise InputError(
            key=path,
            problem="its columns are not separated by commas",
            remedy="save it with commas",
        )


def places_of(
    path: str,
    header: Sequence[str],
    names: Sequence[str],
    optional: Sequence[str],
    ignored: Sequence[str] = (),
    remedy: str = REMEDY,
    missing: str = MISSING,
) -> dict[str, int]:
    """The positions of these columns in the header.

    Raises InputError for a missing or repeated column, and for one that nothing reads, except those
    that the format has beside what is read: `ignored`. The remedy is for one that nothing reads,
    `missing` for one that is missing.
    """
    places = {name: header.index(name) for name in (*names, *optional) if name in header}
    for name in (*names, *places):
        if name not in header:
            has = ", ".join(header)
            raise InputError(key=path, problem=f"no column {name!r}; it has {has}", remedy=missing)
        if header.count(name) > 1:
            problem, one = f"two columns are named {name!r}", "rename or remove one of them"
            raise InputError(key=path, problem=problem, remedy=one)
    others = [name for name in header if name not in places]
    for name in set(optional) - places.keys():
        renamed = [other for other in OTHER_NAMES.get(name, ()) if other in others]
        if alike := renamed or get_close_matches(name, others, 1, ALIKE):
            raise InputError(
                key=path,
                problem=f"nothing reads column {alike[0]!r}; did you mean {name!r}?",
                remedy=remedy,
            )
    unread = next((name for name in others if name not in ignored), None)
    if unread is not None:
        raise InputError(key=path, problem=f"nothing reads column {unread!r}", remedy=remedy)
    return places


class Numbers(NamedTuple):
    """The numbers that a column must have: from `least` on, whole ones at most MAX_LEN; `wanted`
    says so in a message.
    """

    wanted: str
    least: float = -np.inf
    are_whole: bool = False


TOKENS = Numbers("a whole number of tokens, at least 1", 1, are_whole=True)
WHOLE_NUMBERS = Numbers("a whole number", -MAX_LEN, are_whole=True)
SECONDS = Numbers("a time in seconds")


def read_numbers(path: str, column: str, texts: Sequence[str], kind: Numbers) -> NDArray[Any]:
    """A column of finite numbers. Raises InputError for the first text of another kind, with its
    line.
    """
    try:
        values = np.array([*map(float, texts)])
    except ValueError:
        values = np.array([*map(float_or_nan, texts)])
    are_right = (kind.least <= values) & np.isfinite(values)
    if kind.are_whole:
        are_right &= (values <= MAX_LEN) & (values == np.rint(values))
    require(path, column, texts, are_right, kind.wanted)
    return values.astype(np.int64) if kind.are_whole else values


def float_or_nan(text: str) -> float:
    """The number that a text is; NaN if it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def numbered(names: Sequence[object]) -> Column:
    """The names as numbers from 0 on, in order of first appearance; a blank name is unlike any."""
    number_of: dict[object, int] = {}
    named = (name if str(name).strip() else (row,) for row, name in enumerate(names))
    return np.array([number_of.setdefault(name, len(number_of)) for name in named], dtype=np.int64)


def flags(path: str, column: str, texts: Sequence[str]) -> NDArray[np.bool_]:
    """A column of yes and no, written as 1 or true and 0 or false."""
    values = np.array(
        [{"1": 1, "true": 1, "0": 0, "false": 0}.get(text.strip().lower(), -1) for text in texts]
    )
    require(path, column, texts, values >= 0, "1, true, 0 or false")
    return np.asarray(values == 1, dtype=np.bool_)


def require(
    path: str, column: str, texts: Sequence[str], sound: NDArray[np.bool_], wanted: str
) -> None:
    """Raise InputError for the first text of the column that is not sound, with its line."""
    if not sound.all():
        row = int(np.argmin(sound))
        text = texts[row][:40]
        raise InputError(
            key=f"{path}, line {row + 2}, column {column}",
            problem=f"{text!r} is not {wanted}",
            remedy="fix or remove the line",
        )


def read_json(path: str) -> Any:
    """The content of one JSON file."""
    with open_text(path) as file:
        return _parsed(file.read(), path, "it")


def _parsed(text: str, path: str, what: str, first_line: int = 1) -> Any:
    """The value of a JSON text that begins at first_line; `what` names it in an error."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        hint = f"not valid JSON, or truncated (copy or download {what} again)"
        raise InputError(
            key=f"{path}, line {first_line - 1 + error.lineno}", problem=hint
        ) from error
    except (ValueError, RecursionError) as error:  # thousands of digits, or of brackets
        raise InputError(
            key=f"{path}, line {first_line}",
            problem=f"JSON that cannot be read: {error}",
            remedy="mend it",
        ) from error


def read_json_or_lines(path: str) -> Any:
    """The content of a JSON file; of a file with an object on each line, a list of them."""
    with open_text(path) as file:
        text = file.read()
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        rest = text[error.pos :].lstrip()
        if error.msg != "Extra data" or not rest.startswith("{"):
            return _parsed(text, path, "it")
    except (ValueError, RecursionError):
        return _parsed(text, path, "it")
    return [item for _, item in json_lines(path)]


def json_lines(
    path: str, problems: Callable[[Any], Iterable[str | None]] = lambda item: ()
) -> Iterator[tuple[int, Any]]:
    """The items of a file with one JSON object per line, each with its line number.

    Empty lines are skipped. problems(item) yields descriptions of errors in an item, or None; the
    first description is raised as InputError. A file without items is an error too.
    """
    has_items = False
    with open_text(path) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            item = _parsed(line.strip(), path, "the file", number)
            wrong: str | None = "is not a JSON object"
            if isinstance(item, dict):
                wrong = next(filter(None, problems(item)), None)
            if wrong:
                raise InputError(
                    key=f"{path}, line {number}", problem=wrong, remedy="fix or remove the line"
                )
            has_items = True
            yield number, item
    if not has_items:
        raise InputError(key=path, problem="is empty", remedy="give a file with rows")


def unread_key(item: Mapping[str, Any], keys: Collection[str]) -> str | None:
    """The error in an item of JSON that has a key beside the known ones, or None."""
    unread = next((key for key in item if key not in keys), None)
    return None if unread is None else f"nothing reads {unread!r}, which the format lacks"


def wrong_count(item: Mapping[str, Any], key: str, least: int = 1) -> str | None:
    """The error in a number of tokens, or None."""
    value = item.get(key)
    sound = type(value) is int and least <= value <= MAX_LEN
    return None if sound else f"{key}={value!r}: is not a whole number of tokens, at least {least}"


def wrong_time(
    item: Mapping[str, Any], key: str, unit: str = "seconds", least: float = 0.0
) -> str | None:
    """The fault of the time at `key` of an item, which must be a finite number of at least `least`
    in `unit`; None if nothing is.
    """
    value: Any = item.get(key)
    sound = type(value) in (int, float) and least <= value and abs(value) <= LATEST
    return None if sound else f"{key}={value!r}: is not a time in {unit}"


def plain_or_packed(path: Path) -> Path | None:
    """The file of this name or, if there is none, with .gz appended; None if neither exists."""
    return next(
        (file for file in (path, path.with_name(f"{path.name}.gz")) if file.is_file()), None
    )
