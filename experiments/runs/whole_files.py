"""Files that are whole or not there: written under another name, then renamed into place."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SUMMARY = "summary.json"  # comes last, so that its presence means: complete


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A name to write to; what was written becomes `path` at the end, or nothing does.

    The temporary name keeps the suffix, because writers choose a format by it.
    """
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")
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


def write_with(path: Path, write: Callable[[Path], Any]) -> None:
    """Let somebody else's writer make a whole file."""
    with whole(path) as temporary:
        write(temporary)


@contextmanager
def whole_folder(folder: Path, last: str, stale: Callable[[str], bool]) -> Iterator[Path]:
    """A folder to write to, whose files come into `folder` at the end, `last` as the last one, or not at all.

    Files of `folder` of which `stale` says that they belong to what was there before are removed first. Its name says
    which process started this one, so that it can remove what a killed worker has left (see `clean_up`).
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}.{os.getppid()}-{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        yield temporary
        folder.mkdir(exist_ok=True)
        _replace(folder, temporary, last, stale)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(error.filename).replace(str(temporary), str(folder))) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _replace(folder: Path, temporary: Path, last: str, stale: Callable[[str], bool]) -> None:
    (folder / last).unlink(missing_ok=True)
    names = [path.name for path in temporary.iterdir()]
    for path in [path for path in folder.iterdir() if path.is_file() and path.name not in names]:
        if stale(path.name):
            path.unlink()
    for name in sorted(names, key=lambda name: name == last):
        os.replace(temporary / name, folder / name)


def clean_up(parent: Path) -> None:
    """Remove what workers of this process have left below `parent` when they were stopped."""
    for half in parent.glob(f".*.{os.getpid()}-*.tmp"):
        shutil.rmtree(half, ignore_errors=True)
