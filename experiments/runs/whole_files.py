"""Files that are whole or not there: written under another name, then renamed into place."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


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
