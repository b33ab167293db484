"""Replays the requests of a log on the simulated server of a config.

With a measured profile, GPU and model are the profile's. `notes` reports each fact about the real
server that the log lacks, or that differs from the config.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from omegaconf import DictConfig, OmegaConf

from testbed.core.config_model import read
from testbed.core.content_hash import content_hash
from testbed.core.errors import InputError
from testbed.core.specs import GpuSpec
from testbed.cost.profile import read_profile
from testbed.engine.recorder import Columns, request_columns, span_columns
from testbed.experiments.real.importers.known_shapes import gpu_of_device
from testbed.experiments.runs.compose import check_key, composed, typed_config
from testbed.run.build import Setup
from testbed.run.config import RunConfig, ServerConfig, defaults_of
from testbed.run.machine import check_device
from testbed.run.override_words import key_of
from testbed.run.parts import Part
from testbed.run.simulate import run
from testbed.traces.length_model import Floats
from testbed.traces.vllm_log import Times, VllmLog

PROFILE_COST = "testbed.cost.profile.ProfileCost"
VLLM_UTILIZATION = 0.9  # its gpu_memory_utilization
OF_THE_LOG = (  # groups and keys of a config that the log decides
    "trace",
    "arrivals",
    "workload",
    "window_s",
    "stop_at_latency",
    "slo",
    "engine",
    "outputs",
)
LATE = re.compile(r"\+*(server|model)\.")
FRONT_END = ("before_first_token", "after_last_token")  # rows of a profile's section overhead
US = 1e6
UNNAMED = (
    "model=NAME, or cost=profile cost.path=FILE; testbed validate --from-vllm "
    '"vllm serve ..." reads a command'
)


class LoggedMachine(NamedTuple):
    """A server's front end, and its slowness.

    before_first_s: seconds from the client's request to the engine and from its first token back,
    by the number of requests that decode beside it; of one number alone, of all. after_last_s:
    seconds from the engine's last token to the client, which already has all other tokens.
    slowness: an iteration takes this many times its simulated cost.
    """

    before_first_s: Mapping[int, float] = MappingProxyType({0: 0.0})
    after_last_s: float = 0.0
    slowness: float = 1.0

    def before_first_of(self, engine: Times) -> Floats:
        """The seconds of each request of a simulated engine; beyond the largest number the last
        line goes on.
        """
        counts, seconds = [*self.before_first_s], [*self.before_first_s.values()]
        beside = engine.running_at(engine.first_token_s) - 1
        inside = np.interp(beside, counts, seconds)
        if len(counts) == 1:
            return inside
        slope = (seconds[-1] - seconds[-2]) / (counts[-1] - counts[-2])
        return inside + slope * np.maximum(beside - counts[-1], 0)


@dataclass(frozen=True)
class Replayed:
    """A simulated run of a log.

    times: of the requests (s), with the front end and the slowness, as the log has them.
    engine_times, spans: requests and spans of iterations of the engine alone, at slowness 1.
    preemptions: all of them; swaps: those to the host.
    measured: the fingerprint of the profile; empty for other costs.
    """

    times: Times
    engine_times: Times
    spans: Columns
    preemptions: int
    swaps: int
    num_blocks: int
    block_size: int
    measured: Mapping[str, Any]


def server_config(overrides: Sequence[str]) -> RunConfig:
    """The config of `testbed run` with these overrides, of which some may be --config-dir=DIR.

    With cost=profile, model and server are the profile's unless the overrides select them;
    otherwise the overrides name the model, for no default is the log's.
    server.num_blocks=N gives the pool in blocks.
    """
    for word in overrides:
        if re.split(r"[.@]", key_of(word))[0] in OF_THE_LOG:
            raise InputError(
                key=word,
                problem="the log has every request and its time",
                remedy="leave the option out",
            )
    # Values of server and model are set last: a profile may replace both.
    late = [word for word in overrides if LATE.match(word)]
    early = [word for word in overrides if word not in late]
    config = composed("run", early)
    if config.cost._target_ == PROFILE_COST:
        _set_machine(config, overrides)
    values = OmegaConf.from_dotlist([word.lstrip("+") for word in late])
    for word in late:
        key = key_of(word)
        check_key(key, config)
        value = OmegaConf.select(values, key)
        OmegaConf.update(config, key, value, force_add=isinstance(value, DictConfig))
    if config.cost._target_ != PROFILE_COST and "model" not in map(key_of, overrides):
        raise InputError(
            key="model",
            problem="nothing names the model that the log's server served",
            remedy=UNNAMED,
        )
    return typed_config(config, overrides)


def _set_machine(config: DictConfig, overrides: Sequence[str]) -> None:
    """Set the model and the server of the profile, unless the overrides select others."""
    profile = read_profile(str(config.cost.path))
    selected = set(map(key_of, overrides))
    if "model" not in selected:
        config.model = {"_target_": "testbed.core.specs.ModelSpec", **profile["model"]}
    if "server" not in selected:
        if "gpu" in selected:
            gpu = read(GpuSpec, OmegaConf.to_container(config.server.gpu, resolve=True))
            check_device(profile["fingerprint"], gpu, "the server")
        has_pool = "server.num_blocks" in selected
        usual = defaults_of(ServerConfig)["memory_utilization"]
        utilization = usual if has_pool else VLLM_UTILIZATION
        config.server = _server(profile, utilization) | _of_the_user(config.server)


def _of_the_user(server: DictConfig) -> dict[str, Any]:
    """Values of a server that no profile has: the tiers below its GPUs, and what a preset of vLLM's
    computes of it, as it computes it.
    """
    values = OmegaConf.to_container(server, resolve=False)
    assert isinstance(values, dict)
    return {
        str(name): value
        for name, value in values.items()
        if name == "tiers" or OmegaConf.is_interpolation(server, str(name))
    }


def replay(log: VllmLog, config: RunConfig, machine: LoggedMachine | None = None) -> Replayed:
    """Serve the log's requests at their times of arrival.

    Without a machine, the front end is the profile's.
    """
    machine = machine or fitted_machine(config, log)
    slowness = machine.slowness
    arrivals = Part("testbed.engine.arrivals.Replay", {"speedup": slowness})
    result = run(replace(config, trace=Part(log), arrivals=arrivals))
    setup, recorder = result.setup, result.recorder
    if recorder.rejections:
        raise _unserved(log, config, *next(iter(recorder.rejections.items())))
    columns = request_columns(recorder)
    engine = Times(
        columns["arrival_s"], columns["first_token_s"], columns["finish_s"], log.times.output_len
    )
    arrival_s, first_s, finish_s = (slowness * moments for moments in engine[:3])
    before = machine.before_first_of(engine)
    finish_s = finish_s + before + np.where(engine.output_len > 1, machine.after_last_s, 0)
    totals = recorder.totals
    block_size = setup.scheduler.memory.block_size or 1
    return Replayed(
        times=Times(arrival_s, first_s + before, finish_s, engine.output_len),
        engine_times=engine,
        spans=span_columns(recorder),
        preemptions=totals.swaps + totals.recomputes,
        swaps=totals.swaps,
        num_blocks=_blocks_of_all_layers(setup, block_size),
        block_size=block_size,
        measured=setup.cost.fingerprint or {},
    )


def _unserved(log: VllmLog, config: RunConfig, request: int, reason: str) -> InputError:
    """The refusal of a request that the simulated server rejects."""
    model = config.model
    remedy = "enlarge the pool"
    if log.read().prompt_len[request] + log.times.output_len[request] > model.max_len:
        reason += f", {model.name}'s model.max_len"
        remedy = "name the model of the log's server by model=NAME, or its limit by model.max_len=N"
    return InputError(
        key=log.path, problem=f"request {request} cannot be served here: {reason}", remedy=remedy
    )


def _blocks_of_all_layers(setup: Setup, block_size: int) -> int:
    """Blocks of block_size tokens in all layers, windows not cut; a pool in pages of several groups
    has slots of fewer layers.
    """
    config, pool = setup.config, setup.pool
    if pool.num_layers == config.model.num_layers:
        return pool.num_slots // block_size
    pool_bytes = pool.num_slots * pool.layer_bytes * pool.num_layers
    token_bytes = config.model.kv_bytes_per_token * config.model.kv_copies(config.server.num_gpus)
    return pool_bytes // (token_bytes * block_size)


def fitted_machine(config: RunConfig, log: VllmLog) -> LoggedMachine:
    """The front end of the profile; a log that the engine wrote has none."""
    if config.cost.name != PROFILE_COST or log.is_of_engine:
        return LoggedMachine()
    profile = read_profile(str(config.cost.parameters["path"]))
    before, after = (_front_end_s(profile, part) for part in FRONT_END)
    return LoggedMachine(before or {0: 0.0}, max(after.values(), default=0.0))


def _front_end_s(profile: Mapping[str, Any], part: str) -> dict[int, float]:
    """Seconds by the number of decodes: fitted to a log, else those that calibration measured.

    Profiles of older calibrations have one time `loaded`, and one `idle`.
    """
    sections = profile["sections"]
    for row in sections.get("overhead", {}).get("points", ()):
        if row[0] == part:
            return {0: row[-1] / US}
    points = [row for row in sections.get("front_end", {}).get("points", ()) if row[0] == part]
    seconds = {load: us / US for _, load, us in points}
    return {0: seconds["loaded"]} if "loaded" in seconds else dict(sorted(seconds.items()))


def _server(profile: dict[str, Any], utilization: float) -> dict[str, Any]:
    """The server of a profile's GPUs, as values of a config."""
    device = profile["fingerprint"].get("device", "an unknown device")
    gpu = GpuSpec(**profile["gpu"]) if profile.get("gpu") else gpu_of_device(device)
    if gpu is None:
        raise InputError(
            key=device,
            problem="has no data sheet",
            remedy="name its server (server=...), or import it again with --gpu",
        )
    return asdict(ServerConfig(gpu.name, gpu, profile["num_gpus"], memory_utilization=utilization))


def notes(log: VllmLog, config: RunConfig, replayed: Replayed) -> Iterator[str]:
    """Remarks on each fact that the log lacks, or that differs from the simulated server."""
    if null_blocks := config.null_blocks:
        logged = replayed.num_blocks + null_blocks
        yield (
            f"{logged:,} blocks are the server's number; it keeps {null_blocks} for itself "
            f"(null_blocks), so {replayed.num_blocks:,} hold tokens"
        )
    if replayed.preemptions and log.preemptions is None:
        yield f"{replayed.preemptions:,} preemptions in the simulation; the log does not count them"
    yield _ttft_of(log, fitted_machine(config, log).before_first_of(replayed.engine_times))
    yield from _fitted_on(log, replayed.measured)
    if replayed.swaps and "swap" in replayed.measured:
        rate = config.server.gpu.host_bandwidth / 1e9
        yield (
            f"no swap times in the profile: {replayed.swaps:,} swaps at the data sheet's {rate:g} "
            "GB/s"
        )


def _ttft_of(log: VllmLog, front_end_s: Floats) -> str:
    """The TTFT that is compared. front_end_s: seconds that each client waits beyond the engine."""
    if log.is_of_engine:
        return "TTFT is the engine's, until its core has the token: no front end is in it"
    if front_end_s.any():
        median_ms = 1e3 * float(np.median(front_end_s))
        return f"TTFT is the client's: {median_ms:.1f} ms of a front end are in it"
    return "TTFT is the client's, simulated without a front end (the profile has none)"


def _fitted_on(log: VllmLog, measured: Mapping[str, Any]) -> Iterator[str]:
    """States if the profile's software times were fitted on this log or on others."""
    fitted: Mapping[str, str] = measured.get("software_fitted_on", {})
    if content_hash(log.path) in fitted.values():
        yield (
            "the profile's software times were fitted on this very log: its errors are of a fit, "
            "not of a prediction"
        )
    elif fitted:
        yield f"software times fitted on {', '.join(fitted)}; this log was not among them"
