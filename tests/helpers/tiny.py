"""A model of two layers on a small server, costs by its data sheet, and costs whose times are easy
to add up.
"""

from charged_times import apart

from testbed.core.request import PS
from testbed.core.specs import GpuSpec, ModelSpec, ServerSpec
from testbed.cost.analytic import AnalyticCost, Efficiencies
from testbed.cost.model import UNBOUNDED, Affine, CostModel

MODEL = ModelSpec("tiny", 2, 64, 4, 4, 16, 256, 2, 100, max_len=512)


def server(fp16_flops=1e12, host_bandwidth=1e8):
    return ServerSpec("server", GpuSpec("gpu", 10**9, 1e9, fp16_flops, host_bandwidth, 1e9), 1)


def analytic(on=None, model=MODEL, **values):
    """A roofline; values: efficiencies, and times of software."""
    efficiencies, software = apart(values)
    return AnalyticCost(model, on or server(), Efficiencies(**efficiencies), software)


MS = PS // 1000


class OneMillisecond(CostModel):
    """Every iteration takes a millisecond: a plug-in that answers only `iteration`."""

    def iteration(self, work):
        return MS


class OneSecond(OneMillisecond):
    """Every iteration takes a second, as on the clock of the engine's tests, of any model on any
    server.
    """

    def __init__(self, model=None, server=None):
        super().__init__()

    def iteration(self, work):
        return PS


class FastMillisecond(OneMillisecond):
    """The same, and any number of decode iterations at once."""

    def decode(self, work):
        return Affine(MS, 0, UNBOUNDED)
