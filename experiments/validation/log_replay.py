"""Runs what a log says was asked, on the server that a config describes; GPU and model are the profile's."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from omegaconf import DictConfig, OmegaConf

from experiments.importers.known_shapes import gpu_of_device
from experiments.runs.build import build
from experiments.runs.lab import composed
from experiments.runs.misspelt import check_key
from experiments.runs.point import run
from experiments.runs.run_tables import Columns, request_columns, span_columns
from experiments.validation.deviations import Times
from testbed.core.errors import InputError
from testbed.core.specs import GpuSpec
from testbed.cost.profile import read_profile
from traces.vllm_log import Served, VllmLog

PROFILE_COST = "testbed.cost.profile.ProfileCost"


@dataclass(frozen=True)
class Log:
    """The log of a server; `workload` holds its prompts' token ids, None where nobody has them."""

    path: str
    workload: str | None = None

    @cached_property
    def trace(self) -> VllmLog:
        """Its requests, read once."""
        return VllmLog(self.path, self.workload)

    @property
    def served(self) -> Served:
        """What it says."""
        return self.trace.served

    @property
    def times(self) -> Times:
        """When the real server answered."""
        it = self.served
        return Times(it.arrival_s, it.first_token_s, it.finish_s, it.rows.output_len)


@dataclass(frozen=True)
class Replayed:
    """A simulated run of a log: times in seconds as in the log, and the columns of its spans of iterations.

    preemptions are all of them, swaps those to the host. measured says who measured the prices, nothing where they are
    not a profile's.
    """

    times: Times
    spans: Columns
    preemptions: int
    swaps: int
    num_blocks: int
    block_size: int
    measured: Mapping[str, Any]


def server_config(overrides: Sequence[str]) -> DictConfig:
    """The config of `testbed run` with these overrides; with cost=profile, model and server are the profile's.

    server.num_blocks=N gives the pool in blocks.
    """
    own = [text for text in overrides if text.startswith(("server.", "model."))]
    config = composed("run", tuple(text for text in overrides if text not in own)).copy()
    chosen = {text.partition("=")[0] for text in overrides}
    if config.cost._target_ == PROFILE_COST:
        profile = read_profile(str(config.cost.path))
        if "model" not in chosen:
            config.model = {"_target_": "testbed.core.specs.ModelSpec", **profile["model"]}
        if "server" not in chosen:
            config.server = _server(profile)
    _set_own(config, own)
    return config


def replay(log: Log, config: DictConfig) -> Replayed:
    """Serve the log's requests at their times of arrival."""
    config = config.copy()
    config.trace = {"_target_": "traces.vllm_log.VllmLog", "path": log.path, "workload": log.workload}
    config.arrivals = {"_target_": "testbed.sim.arrivals.Replay", "speedup": 1.0}
    setup = build(config, {"trace": log.trace})
    recorder = run(setup).recorder
    if recorder.rejections:
        first, reason = next(iter(recorder.rejections.items()))
        raise InputError(f"{log.path}: request {first} cannot be served here: {reason}; give the pool more room")
    table = request_columns(recorder)
    times = Times(table["arrival_s"], table["first_token_s"], table["finish_s"], log.served.rows.output_len)
    totals = recorder.totals
    size = int(config.policy.get("block_size", 1))
    return Replayed(
        times,
        span_columns(recorder),
        totals.swaps + totals.recomputes,
        totals.swaps,
        setup.pool.num_slots // size,
        size,
        getattr(setup.cost, "fingerprint", {}),
    )


def gpu_of(profile: dict[str, Any]) -> GpuSpec:
    """The data sheet of the profile's GPU."""
    if profile.get("gpu"):
        return GpuSpec(**profile["gpu"])
    device = profile["fingerprint"]["device"]
    found = gpu_of_device(device)
    if found is None:
        raise InputError(f"no data sheet of {device}: name its server (server=...), or import it again with --gpu")
    return found


def _server(profile: dict[str, Any]) -> dict[str, Any]:
    gpu = gpu_of(profile)
    return {
        "_target_": "testbed.core.specs.ServerSpec",
        "name": gpu.name,
        "gpu": {"_target_": "testbed.core.specs.GpuSpec", **asdict(gpu)},
        "num_gpus": profile["num_gpus"],
        "kv_memory_gib": {},
        "num_blocks": None,
        "memory_utilization": 0.9,  # vLLM's gpu_memory_utilization
        "workspace_gib": 1.0,
    }


def _set_own(config: DictConfig, overrides: Sequence[str]) -> None:
    """Values below server and model, which a profile may just have put there."""
    values = OmegaConf.from_dotlist(list(overrides))
    for key in (text.partition("=")[0] for text in overrides):
        check_key(key, config)
        OmegaConf.update(config, key, OmegaConf.select(values, key), force_add=False)
