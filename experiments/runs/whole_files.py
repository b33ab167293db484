"""Atomic files: written under a temporary name, then renamed."""

import csv
import glob
import json
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from testbed.cells import guarded, quoting

SUMMARY = "summary.json"  # written last, so that its presence means that the run is complete


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A temporary path, which is renamed to `path` at the end, or removed after an error. The
    temporary name keeps the suffix, because writers choose a format by it.
    """
    temporary = path.with_name(f".{path.stem}.{PLACE}-{os.getpid()}.tmp{path.suffix}")
    remove_leftovers(path.parent, path.stem, path.suffix)
    temporary.unlink(missing_ok=True)  # a link of this name would lead elsewhere
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(temporary)):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


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
def whole_folder(folder: Path, last: str, stale: Callable[[str], bool]) -> Iterator[Path]:
    """A temporary folder, whose files are moved to `folder` at the end, `last` as the last one, or
    removed. Files of `folder` for which `stale` is true are removed first. The temporary name
    contains the parent process, so that the parent can remove the files of a killed worker (see
    `clean_up`).
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}.{PLACE}-{os.getppid()}-{os.getpid()}.tmp")
    remove_leftovers(folder.parent, folder.name)
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        yield temporary
        folder.mkdir(exist_ok=True)
        (folder / last).unlink(missing_ok=True)
        names = [path.name for path in temporary.iterdir()]
        for path in [
            path for path in folder.iterdir() if path.is_file() and path.name not in names
        ]:
            if stale(path.name):
                path.unlink()
        for name in sorted(names, key=lambda name: name == last):
            os.replace(temporary / name, folder / name)
    except OSError as error:
        raise OSError(
            error.errno, error.strerror, str(error.filename).replace(str(temporary), str(folder))
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def clean_up(parent: Path) -> None:
    """Remove temporary files of this process's stopped workers below `parent`."""
    for half in parent.glob(f".*.{glob.escape(PLACE)}-{os.getpid()}-*.tmp"):
        shutil.rmtree(half, ignore_errors=True)


def remove_leftovers(parent: Path, name: str, suffix: str = "") -> None:
    """Remove what processes that were killed have left of this name; of a living one, or elsewhere,
    nothing.
    """
    of_process = re.compile(
        rf"\.{re.escape(name)}\.{re.escape(PLACE)}-(?:\d+-)?(\d+)\.tmp{re.escape(suffix)}"
    )
    for entry in parent.iterdir() if parent.is_dir() else ():
        match = of_process.fullmatch(entry.name)
        if match and not _is_alive(int(match[1])):
            shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink(
                missing_ok=True
            )


def _is_alive(pid: int) -> bool:
    """Whether there is such a process; on Windows, where asking would end it, any may be."""
    if os.name != "posix":
        return True
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


# Where a process id means what it means here: this machine, and in a container this one's.
try:
    NAMESPACE = f"-{os.stat('/proc/self/ns/pid').st_ino}"
except OSError:  # not Linux
    NAMESPACE = ""
PLACE = f"{platform.node()}{NAMESPACE}"


def write_cells(path: Path, columns: Mapping[str, Any]) -> None:
    """Write columns, arrays or lists, as a CSV: None and NaN are empty, numbers have all digits, no
    text is a formula.
    """
    cells = [_cells(column) for column in columns.values()]
    names = [guarded(name) for name in columns]
    quotes = quoting(chain(names, *cells))
    with whole(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n", quoting=quotes)
        table.writerow(names)
        table.writerows(zip(*cells, strict=True))


def _cells(column: Any) -> list[Any]:
    values = column.tolist() if hasattr(column, "tolist") else column
    filled = ["" if value is None or value != value else value for value in values]
    return [guarded(value) if isinstance(value, str) else value for value in filled]
