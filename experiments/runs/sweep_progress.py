"""How far a sweep is, whichever processes run its points: a count, a rate and an end."""

import time
from pathlib import Path
from typing import NamedTuple

from testbed.experiments.runs.progress import left
from testbed.experiments.runs.whole_files import SUMMARY


class SweepProgress(NamedTuple):
    """A sweep that goes on.

    folder: of its run folders. total: of its points. began_s: Unix time of its beginning.
    """

    folder: Path
    total: int
    began_s: float

    def text(self, place: int) -> str:
        """How far it is when the point at `place` (from 1) has ended, such as "13 of 60, 0.9
        runs/s, about 52 s left".

        The rate counts the runs since the beginning; what was complete before took no time.
        """
        seconds = max(time.time() - self.began_s, 1e-9)
        paths = self.folder.glob(f"[!.]*/{SUMMARY}")
        new = sum(path.stat().st_mtime >= self.began_s for path in paths)
        rate = f", {new / seconds:.2g} runs/s" if new else ""
        rest = left(new, new + self.total - place, seconds) if place < self.total else ""
        return f"{place} of {self.total}{rate}{rest}"
