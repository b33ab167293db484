"""A built run on this machine's GPU: the engine for it, its requests served in real time, the raw rows."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from testbed.build import Setup
from testbed.config import EngineConfig
from testbed.core.errors import InputError
from testbed.core.specs import ModelSpec
from testbed.description import RUN
from testbed.kernels.engine.architecture import Architecture, check_served, of_folder, of_spec
from testbed.kernels.engine.assemble import Options, assemble
from testbed.kernels.engine.gpu_engine import Engine
from testbed.kernels.engine.run_folder import write_run
from testbed.kernels.engine.sampler import TopP
from testbed.kernels.engine.weights import Weights, load_weights, random_weights
from testbed.kernels.launch.compile import KernelsUnavailable, require_gpu
from testbed.sched.beams import SyntheticBeams
from testbed.sim.arrivals import SessionWorkload


def serve_into(folder: Path, setup: Setup, engine: Engine | None = None) -> dict[str, Any]:
    """Serve the workload and write the folder's tables; returns the summary without writing it.

    engine: a result of `make_engine` for this setup, where the caller inspects it afterwards.
    """
    engine = engine or make_engine(setup)
    records = engine.serve(list(setup.workload))
    about = {"kind": "cpu" if device_of(setup) == "cpu" else "gpu", "fingerprint": fingerprint_of(setup)}
    counters = dict(setup.scheduler.policy.counters())
    summary = write_run(folder, records, setup.pool.num_slots, setup.window_ps, setup.slo)
    extra = {"stopped_at_latency": None, "cost_profile": None, "counters": counters, "engine": about}
    return {RUN: dict(setup.description), **summary, **extra}


def make_engine(setup: Setup, weights: Weights | None = None) -> Engine:
    """The engine of a setup; `weights` are the model's, where they are in memory already."""
    config = setup.config
    options = engine_options(config.engine)
    _check(setup)
    arch = architecture(options, setup.model)
    dtype, device, seed = getattr(torch, options.dtype), options.device, config.seed
    if weights is None and options.weights == "random":
        weights = random_weights(arch, seed, device, dtype)
    weights = weights or load_weights(arch, Path(options.weights), device, dtype)
    prefix = setup.workload.rows.registered_prefix
    chosen = Options(
        device, dtype, options.debug, seed,
        TopP(options.temperature, options.top_p, config.seed), window_s=config.window_s, graphs=options.graphs,
        warm=options.warm, registered=prefix if setup.scheduler.policy.shares else 0,
    )  # fmt: skip
    return assemble(setup.scheduler, setup.pool, arch, weights, chosen)


def engine_options(options: EngineConfig | None) -> EngineConfig:
    """The engine's options; raises InputError without their device, before weights are loaded."""
    options = options or EngineConfig()
    if options.device == "cpu":
        return options
    if not options.device.startswith("cuda"):
        raise InputError(f"engine.device={options.device}: must be cuda or cpu")
    try:
        require_gpu()
    except KernelsUnavailable as error:
        raise InputError(
            f"engine.device={options.device}: {error} (run it on a machine with one, or simulate)"
        ) from error
    return options


def device_of(setup: Setup) -> str:
    """The device of a setup's engine."""
    return (setup.config.engine or EngineConfig()).device


def architecture(options: EngineConfig, spec: ModelSpec) -> Architecture:
    """The model's architecture; raises InputError where a folder's shape differs from the config's."""
    if options.weights == "random":
        return of_spec(spec)
    arch = of_folder(Path(options.weights))
    for name in ("num_layers", "num_kv_heads", "head_size", "window"):
        if getattr(arch.spec, name) != getattr(spec, name):
            raise InputError(
                f"{options.weights}: {name}={getattr(arch.spec, name)}: model.{name} is {getattr(spec, name)} "
                "(take the config's model from the folder)"
            )
    check_served(spec)
    return replace(arch, spec=replace(arch.spec, kv_dtype_bytes=spec.kv_dtype_bytes))


def _check(setup: Setup) -> None:
    """Raise InputError for options that the engine does not support."""
    num_gpus = setup.config.server.num_gpus
    if num_gpus != 1:
        raise InputError(f"server.num_gpus={num_gpus}: the engine runs on one GPU")
    tiers = setup.config.server.tiers or {}
    for name, tier in tiers.items():
        if len(tiers) > 1 or tier.read_bandwidth or tier.write_bandwidth:
            raise InputError(f"server.tiers.{name}: the engine has one tier, in the host's memory, behind the GPU's "
                             "link (give one, without bandwidths, or simulate)")  # fmt: skip
    if isinstance(setup.workload, SessionWorkload):
        raise InputError("arrivals=sessions: the engine has no closed loop (simulate it, or replay time stamps)")
    if not isinstance(setup.beams, SyntheticBeams):
        raise InputError("beams: the engine's searches follow the model's scores (leave beams out, or simulate)")
    if setup.config.stop_at_latency is not None:
        raise InputError("stop_at_latency: the engine serves every request; set it to null")


def fingerprint_of(setup: Setup) -> dict[str, Any] | None:
    """The GPU and its software; None on a CPU."""
    if device_of(setup) == "cpu":
        return None
    from testbed.kernels.measure.fingerprint import fingerprint

    return fingerprint()
