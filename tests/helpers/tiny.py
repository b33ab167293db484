"""A model of two layers on a small server, and costs by its data sheet."""

from testbed.core.specs import GpuSpec, ModelSpec, ServerSpec
from testbed.cost.analytic import AnalyticCost, Efficiencies

MODEL = ModelSpec("tiny", 2, 64, 4, 4, 16, 256, 2, 100, max_len=512)


def server(fp16_flops=1e12, host_bandwidth=1e8):
    return ServerSpec("server", GpuSpec("gpu", 10**9, 1e9, fp16_flops, host_bandwidth, 1e9), 1)


def analytic(on=None, **efficiencies):
    return AnalyticCost(MODEL, on or server(), Efficiencies(**efficiencies))
