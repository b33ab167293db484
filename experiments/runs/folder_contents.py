"""The hashes of what a run folder contained when its run was complete, by which a later change is
noticed wherever the folder is read.

The configuration has no hash here: the run's id is one of its values, so that its comments and its
order do not count.
"""

import gzip
import hashlib
import json
import zlib
from pathlib import Path

from testbed.core.errors import InputError
from testbed.experiments.runs.whole_files import SUMMARY, write_json
from testbed.run.identity import content_hash

CONTENTS = "contents.json"
RESULTS = (SUMMARY, "requests.csv", "iterations.csv", "beams.csv", "swaps.csv")


def record_contents(folder: Path) -> None:
    """Write the SHA-256 of each result in a new run folder."""
    hashes = {name: content_hash(folder / name) for name in RESULTS if (folder / name).is_file()}
    write_json(folder / CONTENTS, hashes)


def changed_result(folder: Path) -> Path | None:
    """A result in the folder that is not what its run has written; None if all are.

    A result that was removed is no change, and one that was compressed counts as the same. A
    folder without recorded hashes is of another tool and is taken as it is.
    """
    recorded = folder / CONTENTS
    if not recorded.is_file():
        return None
    try:
        hashes = dict(json.loads(recorded.read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        return recorded
    from testbed.traces.files import plain_or_packed  # a new folder is read without it

    for name in RESULTS:
        path = plain_or_packed(folder / name)
        if path is not None and _hash(path) != hashes.get(name):
            return path
    return None


def check_results(folder: Path) -> None:
    """Raise InputError for a result that was changed after the run."""
    if changed := changed_result(folder):
        raise InputError(
            key=changed,
            problem="was changed after the run, so it is no result of it",
            remedy="testbed run with --again writes the folder anew",
        )


def _hash(path: Path) -> str:
    if path.suffix != ".gz":
        return content_hash(path)
    try:
        with gzip.open(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, EOFError, zlib.error):  # damaged, so it is not what the run has written
        return ""
