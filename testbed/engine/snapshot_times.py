"""The times at which totals of a run are kept: at the first iteration boundary at or after each
requested time.
"""

from collections.abc import Iterable

from testbed.cost.model import UNBOUNDED
from testbed.engine.recorder import Recorder


class SnapshotTimes:
    """The requested times that are still to come; next_ps is the first of them."""

    def __init__(self, recorder: Recorder, times_ps: Iterable[int]) -> None:
        self._recorder = recorder
        self._times_ps = sorted({*times_ps, UNBOUNDED}, reverse=True)
        self.next_ps = self._times_ps[-1]

    def at_boundary(self, now_ps: int) -> None:
        """An iteration boundary: keep the totals for every time that has come."""
        while self.next_ps <= now_ps:
            self._keep(now_ps)

    def after_sleep(self, now_ps: int) -> None:
        """Nothing ran until now_ps: the totals were the same at every time before it."""
        while self.next_ps < now_ps:
            self._keep(self.next_ps)

    def _keep(self, time_ps: int) -> None:
        self._recorder.snapshot(self._times_ps.pop(), time_ps)
        self.next_ps = self._times_ps[-1]
