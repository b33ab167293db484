"""The hash of a file's content."""

import hashlib
from functools import cache
from pathlib import Path


def content_hash(path: str | Path) -> str:
    """SHA-256 of a file's content; a file of the same size and time of change is read once."""
    stat = Path(path).stat()
    return _content_hash(str(path), stat.st_size, stat.st_mtime_ns)


@cache
def _content_hash(path: str, size: int, mtime_ns: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
