"""A run of the paper on a GPU that a profile was measured on: the same system and pool, other costs."""

from dataclasses import replace

from testbed.config import Machine, RunConfig
from testbed.core.errors import InputError
from testbed.core.specs import GpuSpec
from testbed.cost.sections import read_profile
from testbed.experiments.importers.known_shapes import gpu_of_device
from testbed.experiments.runs.compose import configured

PAPERS_COST = "testbed.cost.derive.derived_cost"


def gpu_of_profile(path: str) -> GpuSpec:
    """The data sheet of a profile's GPU: the one in the profile, or the shipped one."""
    profile = read_profile(path)
    device = profile["fingerprint"].get("device", "an unknown device")
    if profile.get("gpu"):
        return replace(GpuSpec(**profile["gpu"]), device=device)
    gpu = gpu_of_device(device)
    if gpu is None:
        raise InputError(f"{path}: no data sheet of {device} (write its values as 'gpu' into the profile)")
    return gpu


def on_gpu_of(path: str, config: RunConfig) -> RunConfig:
    """The run on the profile's GPU, as many of them, with the pool that the paper's server has.

    Kernel times are those of the profile for the model's shard, or derived from the nearest profile; software times
    and the choice of kernels stay those of the system. A run whose costs are not the paper's does not change.
    """
    if config.cost.name != PAPERS_COST:
        return config
    gpu, auto = gpu_of_profile(path), configured(("+protocol=sosp23", "cost=auto")).cost
    server = replace(config.server, name=f"{gpu.name}-x{config.server.num_gpus}", gpu=gpu,
                     kv_memory_of=Machine(gpu.name, config.server.num_gpus))  # fmt: skip
    return replace(config, server=server, cost=auto.updated(path=path, choices=config.cost.parameters["choices"]))
