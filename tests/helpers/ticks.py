"""Cost models whose times are easy to add up."""

from testbed.core.request import PS
from testbed.cost.model import UNBOUNDED, Affine, CostModel

MS = PS // 1000


class OneMillisecond(CostModel):
    """Every iteration takes a millisecond: a plug-in that answers only `iteration`."""

    def iteration(self, work):
        return MS


class OneSecond(OneMillisecond):
    """Every iteration takes a second, as on the clock of the engine's tests."""

    def iteration(self, work):
        return PS


class FastMillisecond(OneMillisecond):
    """The same, and any number of decode iterations at once."""

    def decode(self, work):
        return Affine(MS, 0, UNBOUNDED)
