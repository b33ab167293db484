"""How far a sweep is, whichever processes run its points: a count, a rate and an end."""

import time
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import NamedTuple

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ValueType

from testbed.core.errors import InputError
from testbed.experiments.runs.progress import left
from testbed.experiments.runs.whole_files import SUMMARY


def num_points(overrides: Sequence[str]) -> int:
    """The points of a sweep of these overrides of Hydra. Raises InputError for one that lists no
    values.
    """
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    axes = [axis for axis in parsed if axis.is_sweep_override()]
    for axis in axes:
        if axis.value_type in (ValueType.GLOB_CHOICE_SWEEP, ValueType.INTERVAL_SWEEP):
            raise InputError(f"{axis.input_line}: lists no values (give them with commas between)")
    return prod(sum(1 for _ in axis.sweep_iterator()) for axis in axes)


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
