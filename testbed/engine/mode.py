"""The mode of a run: in which steps time passes, what is kept on the way, and where it ends."""

from typing import NamedTuple

from testbed.cost.model import UNBOUNDED


class Mode(NamedTuple):
    """fast_forward: several identical iterations may be one event; without it every one is, and the
    pool is measured by walking every table; the result is the same. snapshots_ps: the recorder
    keeps the totals at the first boundary at or after each. stop_ps: the end, if requests may be
    left.
    """

    fast_forward: bool = True
    snapshots_ps: tuple[int, ...] = ()
    stop_ps: int = UNBOUNDED

    def from_now(self, now_ps: int) -> "Mode":
        """The mode of an engine that begins now: the snapshots that are still to come."""
        return self._replace(snapshots_ps=tuple(at for at in self.snapshots_ps if at >= now_ps))


WHOLE_RUN = Mode()
