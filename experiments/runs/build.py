"""From config to objects; the one place that instantiates classes by `_target_`."""

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

import hydra.utils
from omegaconf import DictConfig

from experiments.runs.identity import SIMULATOR, plain
from testbed.core.errors import InputError
from testbed.core.request import PS, Rows, Workload
from testbed.core.specs import GIB, ModelSpec, ServerSpec
from testbed.cost.model import CostModel
from testbed.memory.policy import PoolSpec, host
from testbed.sched.beams import BeamModel
from testbed.sched.scheduler import Scheduler

ABOVE_ZERO = {
    "attention_bandwidth", "block_size", "fp16_flops", "host_bandwidth", "prefill_flops",
    "link_bandwidth", "max_batch_size", "max_len", "max_num_batched_tokens", "max_num_seqs", "max_padded_len",
    "memory_bandwidth", "num_gpus", "num_seqs", "stop_at_latency",
}  # fmt: skip


@dataclass(frozen=True)
class Setup:
    """Everything that `simulate` needs."""

    workload: Workload
    scheduler: Scheduler
    beams: BeamModel
    cost: CostModel
    model: ModelSpec
    pool: PoolSpec
    window_ps: tuple[int, int] | None
    fast_forward: bool
    stop_at_latency: float | None


def build(config: DictConfig) -> Setup:
    """The objects of one run. Policy, cost and scheduler get what they serve as first positional arguments."""
    values = plain(config)
    check_options(values)
    check_values(values)
    model, server = make(config.model), make(config.server)
    pool = make_pool(model, server, config.swap_space_gib)
    policy = make(config.policy, pool)
    cost = make(config.cost, model, server)
    scheduler = make(config.scheduler, policy, make(config.preemption, cost))
    workload = make_workload(config)
    if workload.rows.prefix and policy.shares:
        policy.register_prefix(workload.rows.prefix)
    if getattr(policy, "reads_future", False):
        policy.foresee_prompts(workload.rows.prompts())
    return Setup(
        workload,
        scheduler,
        make(config.beams),
        cost,
        model,
        pool,
        _window_ps(values["window_s"]),
        bool(config.fast_forward),
        values["stop_at_latency"],
    )


def make_pool(model: ModelSpec, server: ServerSpec, swap_space_gib: float) -> PoolSpec:
    """The device's pool and the host's; swap_space_gib is that of each GPU."""
    host_slots = int(swap_space_gib * GIB) * server.num_gpus // model.kv_bytes_per_token
    layer_bytes = model.kv_bytes_per_token // model.num_layers
    tiers = host(host_slots, server.gpu.host_bandwidth)
    return PoolSpec(server.kv_slots(model), model.max_len, tiers, layer_bytes, model.num_layers, server.num_gpus)


def make(node: DictConfig, *first: Any) -> Any:
    """Instantiate a node's class with `first` and then the node's own parameters by name."""
    check_types(node)
    return hydra.utils.instantiate(node, *first, _convert_="all")


def make_workload(config: DictConfig) -> Workload:
    """Timed rows; the trace and the arrival process draw from separate streams of the seed."""
    trace, arrivals, options = make(config.trace), make(config.arrivals), config.workload
    if getattr(arrivals, "replays", False):
        rows = _whole_trace(trace, config.seed, options.max_len)
        times = arrivals.times_ps(rows, config.seed)
    else:
        times = arrivals.times_ps(None, config.seed)
        rows = trace.rows(len(times), config.seed, options.max_len)
    return Workload(rows, times, options.num_seqs, options.beam)


def _whole_trace(trace: Any, seed: int, max_len: int | None) -> Rows:
    try:
        return trace.rows(None, seed, max_len)  # type: ignore[no-any-return]
    except InputError as error:
        raise InputError(f"arrivals=replay needs a trace file with time stamps: {error}") from error


def check_options(values: Mapping[str, Any]) -> None:
    """The values that belong to no class."""
    options = {**values, **values["workload"]}
    for key, wanted in (("seed", int), ("num_seqs", int), ("beam", bool), ("fast_forward", bool)):
        if type(options[key]) is not wanted:
            kind = "a whole number" if wanted is int else "true or false"
            raise InputError(f"{key} is {options[key]!r}; it must be {kind}")
    if type(options["swap_space_gib"]) not in (int, float):
        raise InputError(f"swap_space_gib is {options['swap_space_gib']!r}; it must be a number of GiB")
    if options["outputs"] not in ("full", "summary"):
        raise InputError(f"outputs is {options['outputs']!r}; it must be full or summary")
    if type(options["stop_at_latency"]) not in (int, float, type(None)):
        raise InputError(f"stop_at_latency is {options['stop_at_latency']!r}; it must be a number of s/token, or null")
    if type(options["max_len"]) not in (int, type(None)):
        raise InputError(f"workload.max_len is {options['max_len']!r}; it must be a number of tokens, or null")


def check_values(values: Mapping[str, Any], where: str = "") -> None:
    """No number of a config may be negative or not finite, and some must be above zero; plug-ins check their own."""
    if str(values.get("_target_", "testbed")).partition(".")[0] not in SIMULATOR:
        return
    for key, value in values.items():
        name = f"{where}{key}"
        if isinstance(value, Mapping):
            check_values(value, f"{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            if not math.isfinite(value) or value < 0:
                raise InputError(f"{name} is {value}; it must be a finite number, at least 0")
            if key in ABOVE_ZERO and value == 0:
                raise InputError(f"{name} is 0; it must be above 0")


def check_types(node: DictConfig) -> None:
    """A number where the class wants a number, for the plain types that its constructor declares."""
    try:
        target = hydra.utils.get_object(str(node._target_))
        hints = get_type_hints(target.__init__ if inspect.isclass(target) else target)
    except Exception:  # whatever is wrong with the class, instantiate says it
        return
    for key, value in node.items():
        wanted = hints.get(str(key))
        if wanted is int and (not isinstance(value, int) or isinstance(value, bool)):
            raise InputError(f"{node._get_full_key(key)} is {value!r}; it must be a whole number")
        if wanted is float and (not isinstance(value, int | float) or isinstance(value, bool)):
            raise InputError(f"{node._get_full_key(key)} is {value!r}; it must be a number")


def _window_ps(window_s: Any) -> tuple[int, int] | None:
    if window_s is None:
        return None
    if not isinstance(window_s, list) or len(window_s) != 2 or not 0 <= window_s[0] < window_s[1]:
        raise InputError(f"window_s is {window_s}; give [from, to] in seconds, or null")
    return round(window_s[0] * PS), round(window_s[1] * PS)
