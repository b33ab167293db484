"""The slowness of a host from moment to moment, as the launches of its sweeps had it.

A host that shares its cores launches the same prompts in 0.7 to 1.3 times their mean time, for
seconds at a time. By the mean alone all first tokens take nearly the same time, and a queue waits
too little: it grows in slow seconds by more than it shrinks in fast ones.
"""

from bisect import bisect_right

import numpy as np

from testbed.core.slots import record
from testbed.cost.model import Launch
from testbed.cost.sections import Rows

SLOWNESS = "launch_slowness"
PS_PER_MS = 10**9
MILLION = 10**6
OF_MOMENTS = 3  # the stream of a seed that draws a moment; 1 draws arrivals, 2 beams


class LaunchSlowness:
    """Factors of launches with prompts: each from its moment until the next one, the last as long
    as the one before it; then they come again. begun: the share of them that is over at time 0;
    None: a run's seed draws it.
    """

    def __init__(self, points: Rows, begun: float | None = None) -> None:
        self._points = points
        self._moments_ps = [moment * PS_PER_MS for (moment,), _ in points]
        self._millionths = [value for _, value in points]
        last_ps = self._moments_ps[-1]
        self._period_ps = max(2 * last_ps - self._moments_ps[-2:][0], 1)
        self.is_begun = begun is not None
        self._begun_ps = round((begun or 0.0) * self._period_ps)

    def begun(self, share: float) -> "LaunchSlowness":
        """The same, with this share of it over at time 0."""
        return LaunchSlowness(self._points, share)

    def of_seed(self, seed: int) -> "LaunchSlowness":
        """The same, from a moment on that the seed draws if none was chosen."""
        if self.is_begun:
            return self
        return self.begun(np.random.default_rng([seed, OF_MOMENTS]).random())

    def slowed(self, launch: Launch, now_ps: int) -> Launch:
        """The launch if the host begins with it now."""
        moment_ps = (self._begun_ps + now_ps) % self._period_ps
        millionths = self._millionths[bisect_right(self._moments_ps, moment_ps) - 1]
        return record(Launch, [ps * millionths // MILLION for ps in launch])
