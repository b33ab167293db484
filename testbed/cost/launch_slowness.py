"""The slowness of a host from moment to moment, as the launches of its sweeps had it.

A host that shares its cores launches the same prompts in 0.7 to 1.3 times their mean time, for
seconds at a time. By the mean alone all first tokens take nearly the same time, and a queue waits
too little: it grows in slow seconds by more than it shrinks in fast ones.
"""

from bisect import bisect_right

from testbed.core.slots import record
from testbed.cost.model import Launch
from testbed.cost.sections import PS_PER_US, Rows

SLOWNESS = "launch_slowness"
PS_PER_MS = 10**9


class LaunchSlowness:
    """Factors of launches with prompts: each from its moment until the next one, the last as long
    as the one before it; then they come again. begun: the share of them that is over at time 0.
    """

    def __init__(self, points: Rows, begun: float = 0.0) -> None:
        self._points = points
        self._moments_ps = [moment * PS_PER_MS for (moment,), _ in points]
        self._millionths = [value for _, value in points]
        last_ps = self._moments_ps[-1]
        self._period_ps = max(2 * last_ps - self._moments_ps[-2:][0], 1)
        self._begun_ps = round(begun * self._period_ps)

    def begun(self, share: float) -> "LaunchSlowness":
        """The same, with this share of it over at time 0."""
        return LaunchSlowness(self._points, share)

    def slowed(self, launch: Launch, now_ps: int) -> Launch:
        """The launch if the host begins with it now."""
        moment_ps = (self._begun_ps + now_ps) % self._period_ps
        millionths = self._millionths[bisect_right(self._moments_ps, moment_ps) - 1]
        return record(Launch, [ps * millionths // PS_PER_US for ps in launch])
