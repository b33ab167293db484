"""Files and folders that appear as a whole or not at all: written beside their place, then renamed.

The temporary name has the machine and the process. Temporary files that a killed process of this
machine has left are removed.
"""

import csv
import errno
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import gethostname
from tempfile import gettempdir
from typing import Any

SUMMARY = "summary.json"  # a folder that has it holds a complete run
MARK = ".testbed-tmp"  # in the names of temporary files and folders, which begin with a dot
OWNER = re.compile(r"@(?P<machine>[^@]*)@(?P<process>\d+)@")  # of a temporary name
ROWS_AT_ONCE = 1 << 13  # of a table that is being written
ATTEMPTS = 100
DEVICES = Path("/dev")


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A temporary path, which is renamed to `path` at the end, or removed after an error.

    The temporary name keeps the suffix, because writers choose a format by it. A device or a pipe
    gets the content. A link is replaced, because a folder that came from elsewhere may have links
    to any file; only the links among the devices (/dev/stdout) are followed.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    is_stream = _takes_content(path)
    place = Path(gettempdir(), path.name) if is_stream else path
    remove_leftovers(place.parent, place.stem)
    with temporary_place(place, is_folder=False) as temporary:
        try:
            yield temporary
            if is_stream:
                _append(path, temporary.read_bytes())
            else:
                os.replace(temporary, place)
        except OSError as error:
            if error.filename in (None, str(temporary)):
                raise OSError(error.errno, error.strerror, str(path)) from error
            raise


def _takes_content(path: Path) -> bool:
    """True if this is a device, a pipe, or one of the links that stand for an open file."""
    if path.is_symlink():
        return path.absolute().is_relative_to(DEVICES) and path.exists()
    return path.exists() and not path.is_file()


def _append(path: Path, content: bytes) -> None:
    with path.open("ab") as stream:
        stream.write(content)


def write_text(path: Path, text: str) -> None:
    """Write a whole text file."""
    with whole(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, value: Any) -> None:
    """Write a whole JSON file."""
    write_text(path, json.dumps(value, indent=2) + "\n")


@contextmanager
def whole_folder(
    folder: Path, stale: Callable[[str], bool], is_there: Callable[[], bool]
) -> Iterator[Path]:
    """A temporary folder, which is renamed to `folder` at the end, or removed after an error.

    An existing folder is replaced at once, but its files for which `stale` is false are kept. If
    `is_there()` is true at the end, another process was faster, and its folder stays.
    """
    place = folder.resolve()
    place.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(place.parent, place.name)
    with temporary_place(place, is_folder=True) as temporary:
        try:
            yield temporary
            if not is_there():
                _keep_others(place, temporary, stale)
                _put(temporary, place)
        except OSError as error:
            named = str(error.filename or folder).replace(str(temporary), str(folder))
            raise OSError(error.errno, error.strerror, named) from error


def _put(temporary: Path, folder: Path) -> None:
    """Rename a folder to a place that another process may fill meanwhile; the last one stays."""
    for _ in range(ATTEMPTS):
        with suppress(OSError):
            os.rename(temporary, folder)
            return
        with temporary_place(folder, is_folder=True) as old, suppress(FileNotFoundError):
            os.rename(folder, old)  # in place of an empty folder
    os.rename(temporary, folder)  # its error says why


def _keep_others(folder: Path, temporary: Path, stale: Callable[[str], bool]) -> None:
    """Copy the files that belong to no run from the old folder into the new one."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_dir():
            reason = f"is no run's folder, for it has a folder {path.name} (name another one)"
            raise FileExistsError(errno.EEXIST, reason, str(folder))
        if not stale(path.name) and not (temporary / path.name).exists():
            shutil.copy2(path, temporary / path.name, follow_symlinks=False)


@contextmanager
def temporary_place(path: Path, *, is_folder: bool) -> Iterator[Path]:
    """A place beside `path`, of this process alone, which is empty at the end. is_folder: it is a
    folder, made here.
    """
    own = f"@{gethostname()}@{os.getpid()}@{secrets.token_hex(4)}{MARK}"
    temporary = path.with_name(f".{path.stem}{own}{path.suffix}")
    try:
        if is_folder:
            temporary = path.with_name(f".{path.name}{own}")
            temporary.mkdir()
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    try:
        yield temporary
    finally:
        remove(temporary)


def remove(path: Path) -> None:
    """Remove a file or a folder, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def remove_leftovers(parent: Path, name: str = "") -> None:
    """Remove the leftovers of killed processes in a folder: those of `name`, or all."""
    pattern = f".{name}@" if name else "."
    for entry in parent.iterdir() if parent.is_dir() else ():
        if entry.name.startswith(pattern) and MARK in entry.suffixes and _is_left(entry.name):
            with suppress(OSError):  # another process has removed it
                remove(entry)


def _is_left(name: str) -> bool:
    """True if a temporary name is of a process of this machine that has ended."""
    owner = OWNER.search(name)
    if owner is None or owner["machine"] != gethostname():
        return False
    try:
        os.kill(int(owner["process"]), 0)  # asks whether it lives
    except ProcessLookupError:
        return True
    except OSError:  # another user's
        return False
    return False


def write_cells(path: Path, columns: Mapping[str, Any]) -> None:
    """Write columns (arrays or lists) as a CSV.

    None and NaN are empty cells, and numbers keep all digits.
    """
    num_rows = max(map(len, columns.values()), default=0)
    starts = range(0, num_rows or 1, ROWS_AT_ONCE)  # a cell takes more memory than its number
    some = (slice(start, start + ROWS_AT_ONCE) for start in starts)
    write_parts(path, ({name: column[part] for name, column in columns.items()} for part in some))


def write_parts(path: Path, parts: Iterable[Mapping[str, Any]]) -> None:
    """Write the same of columns which come some rows at a time."""
    with whole(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        for place, columns in enumerate(parts):
            if not place:
                table.writerow(columns)
            table.writerows(zip(*map(_cells, columns.values()), strict=True))


def _cells(column: Any) -> list[Any]:
    values = column.tolist() if hasattr(column, "tolist") else column
    is_numeric = hasattr(column, "dtype") and column.dtype.kind in "iufb"
    if is_numeric and (column == column).all():  # as most are: nothing is missing
        return values  # type: ignore[no-any-return]
    return ["" if value is None or value != value else value for value in values]
