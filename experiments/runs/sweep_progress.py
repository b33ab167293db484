"""The progress of a sweep, whichever processes run its points: a count, a rate and an end."""

import time
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from testbed.experiments.runs.progress import left
from testbed.experiments.runs.whole_files import SUMMARY


class SweepProgress(NamedTuple):
    """A sweep that goes on.

    folder: of its run folders. ids: of its points' runs, beside which the folder may have those of
    other commands. total: of its points. began_s: Unix time of its beginning. shows: a line is
    printed for each point that has ended.
    """

    folder: Path
    ids: Collection[str]
    total: int
    began_s: float
    shows: bool = True

    @property
    def num_new(self) -> int:
        """The runs that have ended since the beginning."""
        paths = [self.folder / name / SUMMARY for name in self.ids]
        return sum(path.exists() and path.stat().st_mtime >= self.began_s for path in paths)

    def __str__(self) -> str:
        """The progress while points are under way."""
        return f"simulating: {self.num_new} of {self.total} points have been run"

    def text(self, place: int) -> str:
        """The progress when the point at `place` (from 1) has ended, such as "13 of 60, 0.9
        runs/s, about 52 s left".

        The rate counts the runs since the beginning; what was complete before took no time.
        """
        seconds = max(time.time() - self.began_s, 1e-9)
        new = self.num_new
        rate = f", {new / seconds:.2g} runs/s" if new else ""
        rest = left(new, new + self.total - place, seconds) if place < self.total else ""
        return f"{place} of {self.total}{rate}{rest}"
