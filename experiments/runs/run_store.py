"""Configures the experiments' runs by the paper's protocol, and simulates each run only once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from testbed.core.errors import InputError
from testbed.core.specs import GpuSpec
from testbed.cost.sections import read_profile
from testbed.experiments.real.importers.known_shapes import gpu_of_device
from testbed.experiments.runs.choice_names import FILE_READERS
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.run_folder import run_into
from testbed.run.config import Machine, RunConfig
from testbed.run.constructor_parameters import parameters_of
from testbed.run.parts import Part, locate

PAPERS_COST = "testbed.cost.derive.derived_cost"


class Measured(NamedTuple):
    """A run's summary, and the name of its folder."""

    summary: dict[str, Any]
    run_id: str


@dataclass(frozen=True)
class RunStore:
    """A folder of run folders, and options of all its runs.

    lengths: pairs of a length model's name and a file that is replayed in its place. overrides:
    options that replace those of the studies. profile: a file whose GPU replaces the paper's.
    """

    folder: Path
    lengths: tuple[tuple[str, str], ...] = ()
    overrides: tuple[str, ...] = ()
    profile: str | None = None

    def config(
        self, overrides: Sequence[str], values: Mapping[str, Any] | None = None
    ) -> RunConfig:
        """The config of a run by the paper's protocol: overrides, then values by dotted key."""
        config = self._replayed(
            configured(("+protocol=sosp23", *overrides, *self.overrides), values)
        )
        return on_gpu_of(self.profile, config) if self.profile else config

    def measure(
        self, overrides: Sequence[str], values: Mapping[str, Any] | None = None
    ) -> Measured:
        """The summary of a run, from its folder if it is complete there."""
        return self.measured(self.config(overrides, values))

    def measured(self, config: RunConfig) -> Measured:
        """The summary of a run by its config."""
        stored = run_into(config, self.folder)
        return Measured(stored.summary, stored.run_id)

    def _replayed(self, config: RunConfig) -> RunConfig:
        """The config with the file that is replayed in place of its length model, if any. The
        reader gets what is set of the model besides its name.
        """
        files, embedded = dict(self.lengths), str(config.trace.parameters.get("model"))
        if embedded not in files:
            return config
        usual = parameters_of(locate(config.trace.name, "trace")).plain_defaults
        kept = {
            key: value
            for key, value in config.trace.parameters.items()
            if key != "model" and value != usual.get(key)
        }
        return replace(
            config, trace=Part(FILE_READERS[embedded], {"path": files[embedded], **kept})
        )


def gpu_of_profile(path: str) -> GpuSpec:
    """The data sheet of a profile's GPU: the one in the profile, or the shipped one."""
    profile = read_profile(path)
    device = profile["fingerprint"].get("device", "an unknown device")
    if profile.get("gpu"):
        return replace(GpuSpec(**profile["gpu"]), device=device)
    gpu = gpu_of_device(device)
    if gpu is None:
        raise InputError(
            key=path,
            problem=f"no data sheet of {device}",
            remedy="write its values as 'gpu' into the profile",
        )
    return gpu


def on_gpu_of(path: str, config: RunConfig) -> RunConfig:
    """The run on as many of the profile's GPUs, with the pool of the paper's server.

    Kernel times are the profile's, or derived from the nearest one. Software times and the choice
    of kernels stay those of the system. A run whose costs are not the paper's does not change.
    """
    if config.cost.name != PAPERS_COST:
        return config
    gpu, auto = gpu_of_profile(path), configured(("+protocol=sosp23", "cost=auto")).cost
    server = replace(
        config.server,
        name=f"{gpu.name}-x{config.server.num_gpus}",
        gpu=gpu,
        kv_memory_of=Machine(gpu.name, config.server.num_gpus),
    )
    kept = {name: config.cost.parameters[name] for name in ("choices", "software")}
    return replace(config, server=server, cost=auto.updated(path=path, **kept))
