"""Runs what a log says was asked, on the server that a config describes; GPU and model are the
profile's.

And says what a reader should know of that server: what the log does not say, and what it says
otherwise.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from omegaconf import OmegaConf

from testbed.config import RunConfig, ServerConfig
from testbed.core.errors import InputError
from testbed.core.specs import GpuSpec
from testbed.cost.profile import read_profile
from testbed.engine.recorder import Columns, request_columns, span_columns
from testbed.experiments.importers.known_shapes import gpu_of_device
from testbed.experiments.runs.compose import check_key, composed, typed_config
from testbed.identity import content_hash
from testbed.parts import Part
from testbed.run import run
from testbed.traces.files import plain_or_packed, read_json
from testbed.traces.vllm_log import Times, VllmLog

PROFILE_COST = "testbed.cost.profile.ProfileCost"
VLLM_UTILIZATION = 0.9  # its gpu_memory_utilization
OF_THE_LOG = (
    "trace",
    "arrivals",
    "workload",
    "window_s",
    "stop_at_latency",
    "slo",
    "engine",
    "outputs",
)
LIMITS = ("max_num_seqs", "max_num_batched_tokens")
FRONT_END = (
    "before_first_token",
    "after_last_token",
)  # what a profile's section overhead calls them
US = 1e6


class LoggedMachine(NamedTuple):
    """What a server takes beyond its engine, in seconds: from the client's request to the engine,
    and from the last token to the client, which has had every other token meanwhile; and how many
    times slower it is than its costs.
    """

    before_first_s: float = 0.0
    after_last_s: float = 0.0
    slowness: float = 1.0


@dataclass(frozen=True)
class Replayed:
    """A simulated run of a log: times in seconds as in the log, and those of the engine alone with
    the columns of its spans of iterations, both as if the machine were as fast as the costs say.
    preemptions are all of them, swaps those to the host. measured says who measured the costs,
    nothing where they are not a profile's.
    """

    times: Times
    engine_times: Times
    spans: Columns
    preemptions: int
    swaps: int
    num_blocks: int
    block_size: int
    measured: Mapping[str, Any]


def server_config(overrides: Sequence[str], config_dir: str | None = None) -> RunConfig:
    """The config of `testbed run` with these overrides; with cost=profile, model and server are the
    profile's. server.num_blocks=N gives the pool in blocks. config_dir is a folder of the user's
    own choices.
    """
    for text in overrides:  # a log says what was asked and when, and all of it is replayed
        if re.split(r"[.@=]", text.lstrip("+~"))[0] in OF_THE_LOG:
            raise InputError(
                f"{text}: the log has every request and its time (leave the option out)"
            )
    folders = (f"--config-dir={config_dir}",) if config_dir else ()
    own = [text for text in overrides if text.startswith(("server.", "model."))]
    config = composed("run", (*folders, *(text for text in overrides if text not in own))).copy()
    chosen = {text.partition("=")[0] for text in overrides}
    if config.cost._target_ == PROFILE_COST:
        profile = read_profile(str(config.cost.path))
        if "model" not in chosen:
            config.model = {"_target_": "testbed.core.specs.ModelSpec", **profile["model"]}
        if "server" not in chosen:
            pool_given = any(text.startswith("server.num_blocks=") for text in own)
            utilization = (
                ServerConfig.default("memory_utilization") if pool_given else VLLM_UTILIZATION
            )
            config.server = _server(profile, utilization)
    values = OmegaConf.from_dotlist(
        own
    )  # below server and model, which a profile may just have put there
    for key in (text.partition("=")[0] for text in own):
        check_key(key, config)
        OmegaConf.update(config, key, OmegaConf.select(values, key), force_add=False)
    return typed_config(config)


def replay(log: VllmLog, config: RunConfig, machine: LoggedMachine | None = None) -> Replayed:
    """Serve the log's requests at their times of arrival; without a machine on the one fitted into
    the profile.
    """
    before, after, slowness = machine or _fitted(config, log)
    arrivals = Part("testbed.engine.arrivals.Replay", {"speedup": slowness})
    result = run(replace(config, trace=Part(log), arrivals=arrivals))
    setup, recorder = result.setup, result.recorder
    if recorder.rejections:
        first, reason = next(iter(recorder.rejections.items()))
        raise InputError(
            f"{log.path}: request {first} cannot be served here: {reason}; enlarge the pool"
        )
    table = request_columns(recorder)
    engine = Times(
        table["arrival_s"], table["first_token_s"], table["finish_s"], log.times.output_len
    )
    arrival_s, first_s, finish_s = (slowness * moments for moments in engine[:3])
    finish_s = finish_s + before + np.where(engine.output_len > 1, after, 0)
    totals, size = recorder.totals, int(config.policy.parameters.get("block_size", 1))
    return Replayed(
        Times(arrival_s, first_s + before, finish_s, engine.output_len),
        engine,
        span_columns(recorder),
        totals.swaps + totals.recomputes,
        totals.swaps,
        setup.pool.num_slots // size,
        size,
        getattr(setup.cost, "fingerprint", {}),
    )


def _fitted(config: RunConfig, log: VllmLog) -> LoggedMachine:
    """The front end of the profile, none for a log that the engine wrote; the slowness if it was
    fitted on this log.
    """
    if config.cost.name != PROFILE_COST:
        return LoggedMachine()
    profile = read_profile(str(config.cost.parameters["path"]))
    points = () if log.is_of_engine else profile["sections"].get("overhead", {}).get("points", ())
    known = {row[0]: row[1] / US for row in points}
    before, after = (known.get(name, 0.0) for name in FRONT_END)
    slowness = profile["fingerprint"].get("slowness", {}).get(content_hash(log.path), 1.0)
    return LoggedMachine(before, after, float(slowness))


def _server(profile: dict[str, Any], utilization: float) -> dict[str, Any]:
    device = profile["fingerprint"].get("device", "an unknown device")
    gpu = GpuSpec(**profile["gpu"]) if profile.get("gpu") else gpu_of_device(device)
    if gpu is None:
        raise InputError(
            f"no data sheet of {device}: name its server (server=...), or import it again with "
            f"--gpu"
        )
    return asdict(ServerConfig(gpu.name, gpu, profile["num_gpus"], memory_utilization=utilization))


def meta_of(log: VllmLog) -> Mapping[str, Any]:
    """meta.json in the log's folder, empty where there is none."""
    path = plain_or_packed(Path(log.path).with_name("meta.json"))
    found = read_json(str(path)) if path else None
    return found if isinstance(found, dict) else {}


def notes(log: VllmLog, config: RunConfig, replayed: Replayed) -> Iterator[str]:
    """One line for each thing that the log does not say, or says otherwise."""
    if null_blocks := config.null_blocks:
        logged = replayed.num_blocks + null_blocks
        yield (
            f"{logged:,} blocks are the server's number; it keeps {null_blocks} for itself "
            f"(null_blocks), so {replayed.num_blocks:,} hold tokens"
        )
    if replayed.preemptions:
        yield f"{replayed.preemptions:,} preemptions in the simulation; the log does not count them"
    limits = meta_of(log).get("engine_kwargs") or {}
    for key in LIMITS:
        here = config.scheduler.parameters.get(key)
        if limits.get(key) not in (None, here):
            yield (
                f"meta.json says {key} {limits[key]}, simulated with {here}; say "
                f"scheduler.{key}={limits[key]}"
            )
    fitted, slowness = (
        replayed.measured.get(name, {}) for name in ("software_fitted_on", "slowness")
    )
    digest = content_hash(log.path)
    if digest in fitted.values():
        yield (
            "the profile's software times were fitted on this very log: its errors are of a fit, "
            "not of a prediction"
        )
        if digest in slowness:
            yield (
                f"taken with the slowness that was fitted to it, {slowness[digest]:.3f} times the "
                f"profile's"
            )
    elif fitted:
        yield f"software times fitted on {', '.join(fitted)}; this log was not among them"
        if slowness:
            low, high = min(1.0, *slowness.values()), max(1.0, *slowness.values())
            yield (
                f"those machines are {low:.2f} to {high:.2f} times as slow as the profile, this "
                f"one's is taken as 1"
            )
    if replayed.swaps and "swap" in replayed.measured:
        rate = config.server.gpu.host_bandwidth / 1e9
        yield (
            f"no swap times in the profile: {replayed.swaps:,} swaps at the data sheet's {rate:g} "
            f"GB/s"
        )
