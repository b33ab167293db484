"""What the points of a sweep leave for the process that started it, whichever launcher runs them.

Each point writes a note when it begins: its number, what was chosen for it, its folder. The folder of the notes is
named by an environment variable, which launchers hand on, and lies where the sweep was started.
"""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from experiments.runs.point import complete
from experiments.runs.sweep_table import Point, chosen
from experiments.runs.whole_files import write_json

VARIABLE = "TESTBED_SWEEP_NOTES"


@contextmanager
def notes() -> Iterator[Path]:
    """The folder, while the sweep lasts; where it is stopped, points that are not complete leave nothing."""
    folder = Path.cwd() / f".testbed-sweep-{os.getpid()}"
    folder.mkdir()
    os.environ[VARIABLE] = str(folder)
    try:
        yield folder
    except BaseException:
        for _, point in _read(folder):
            remove_half(point)
        raise
    finally:
        del os.environ[VARIABLE]
        shutil.rmtree(folder, ignore_errors=True)


def note(number: int, overrides: Sequence[str], folder: Path) -> None:
    """Say that a point begins."""
    if VARIABLE in os.environ:
        write_json(Path(os.environ[VARIABLE]) / f"{number}.json", [list(overrides), str(folder)])


def points(folder: Path) -> list[tuple[Point, Path]]:
    """The complete points in order, each with its folder."""
    found = ((overrides, point, complete(point)) for overrides, point in _read(folder))
    return [(Point(chosen(words), summary, point.name), point) for words, point, summary in found if summary]


def remove_half(point: Path) -> None:
    """Remove what a point that was stopped has left."""
    for half in point.parent.glob(f".{point.name}.*.tmp"):
        shutil.rmtree(half, ignore_errors=True)
    with suppress(OSError):  # not empty: an older run's
        point.rmdir()


def _read(folder: Path) -> list[tuple[list[str], Path]]:
    paths = sorted(folder.glob("[0-9]*.json"), key=lambda path: int(path.stem))
    found = (json.loads(path.read_text(encoding="utf-8")) for path in paths)
    return [(overrides, Path(point)) for overrides, point in found]
