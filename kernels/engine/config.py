"""Reads a resolved config (a run folder's config.yaml, or the same as JSON) and makes its objects, without Hydra.

Beside the keys of a simulated run it knows `engine`: weights ("random" or a Hugging Face folder), device, dtype, debug,
graphs, warm, out; and `requests`, a table of requests with its own times, in place of trace and arrivals.
"""

import csv
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kernels.engine.architecture import Architecture, of_folder, of_spec
from kernels.engine.assemble import Options, assemble
from kernels.engine.gpu_engine import Engine
from kernels.engine.run_folder import write_run
from kernels.engine.sampling import TopP
from kernels.engine.weights import Weights, load_weights, random_weights
from kernels.launch.compile import KernelsUnavailable, require_gpu
from testbed.core.errors import InputError
from testbed.core.request import PS, Request, Workload
from testbed.core.specs import GIB, ModelSpec
from testbed.cost.model import CostModel
from testbed.memory.policy import PoolSpec, host

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
DEFAULTS: dict[str, Any] = {
    "weights": "random", "device": "cuda", "dtype": "float16", "debug": False, "graphs": 256, "out": "engine-run",
    "warm": [64, 512, 2048], "temperature": 1.0, "top_p": 1.0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Run:
    """A run that can begin: engine, its requests in order of arrival, and what its summary is an average over."""

    engine: Engine
    requests: list[Request]
    num_slots: int
    window_ps: tuple[int, int] | None
    config: dict[str, Any]
    device: str

    def carry_out(self, folder: Path, packed: bool = False) -> dict[str, Any]:
        """Serve all requests and write the run's folder; returns the summary."""
        records = self.engine.serve(self.requests)
        about = {
            "stopped_at_latency": None,
            "cost_profile": None,
            "counters": dict(self.engine.scheduler.policy.counters()),
            "engine": self._about(),
        }
        return write_run(folder, records, self.num_slots, self.window_ps, about, self.config, packed)

    def _about(self) -> dict[str, Any]:
        if self.device == "cpu":
            return {"kind": "cpu", "fingerprint": None}
        from kernels.measure.fingerprint import fingerprint

        return {"kind": "gpu", "fingerprint": fingerprint()}


def make(node: dict[str, Any], *first: Any) -> Any:
    """The object that a node's `_target_` names, made with `first` and its own values by name, nested ones before."""
    values = {key: _made(value) for key, value in node.items() if not key.startswith("_")}
    target = _find(node["_target_"])
    try:
        return target(*first, **values)
    except TypeError as error:
        raise InputError(f"{node['_target_']} cannot be made: {error}") from error


def make_run(config: dict[str, Any], weights: Weights | None = None, cost: CostModel | None = None) -> Run:
    """Everything that a config says; its cost model and beam model are the simulator's, and left alone.

    weights: those of the config's model, where they are in memory already. cost: for a preemption rule that asks.
    """
    options = engine_options(config)
    check_device(options["device"])
    spec: ModelSpec = make(config["model"])
    pool = make_pool(config, spec)
    policy = make(config["policy"], pool)
    scheduler = make(config["scheduler"], policy, make(config["preemption"], *([] if cost is None else [cost])))
    requests = make_requests(config)
    prefix = max((r.prefix for r in requests), default=0)
    if prefix and policy.shares:
        policy.register_prefix(prefix)
    arch, seed, window_s = architecture(options, spec), config.get("seed", 0), config.get("window_s")
    if weights is None:
        weights = make_weights(options, arch, seed)
    chosen = Options(
        options["device"], DTYPES[options["dtype"]], options["debug"], seed,
        TopP(options["temperature"], options["top_p"], seed), window_s=tuple(window_s) if window_s else None,
        graphs=options["graphs"], warm=tuple(options["warm"]), registered=prefix if policy.shares else 0,
    )  # fmt: skip
    engine = assemble(scheduler, pool, arch, weights, chosen)
    window_ps = (round(window_s[0] * PS), round(window_s[1] * PS)) if window_s else None
    return Run(engine, requests, pool.num_slots, window_ps, config, options["device"])


def make_weights(options: dict[str, Any], arch: Architecture, seed: int) -> Weights:
    """A folder's weights, or random ones."""
    device, dtype = options["device"], DTYPES[options["dtype"]]
    if options["weights"] == "random":
        return random_weights(arch, seed, device, dtype)
    return load_weights(arch, Path(options["weights"]), device, dtype)


def engine_options(config: dict[str, Any]) -> dict[str, Any]:
    """What the config says of the engine, and the defaults of what it does not."""
    given = config.get("engine") or {}
    given = given if isinstance(given, dict) else {}
    unknown = sorted(set(given) - set(DEFAULTS))
    if unknown:
        raise InputError(f"engine.{unknown[0]} is unknown; the engine knows {', '.join(DEFAULTS)}")
    options = DEFAULTS | given
    if options["dtype"] not in DTYPES:
        raise InputError(f"engine.dtype is {options['dtype']!r}; choose one of {', '.join(DTYPES)}")
    return options


def check_device(device: Any) -> None:
    """The device must be there, before weights are made for it."""
    if device == "cpu":
        return
    if not str(device).startswith("cuda"):
        raise InputError(f"engine.device is {device!r}; it must be cuda or cpu")
    try:
        require_gpu()
    except KernelsUnavailable as error:
        raise InputError(f"engine.device is {device}: {error}; run it on a machine with one, or simulate") from error


def architecture(options: dict[str, Any], spec: ModelSpec) -> Architecture:
    """The model's; a folder's must have the shape that the config gives."""
    if options["weights"] == "random":
        return of_spec(spec)
    arch = of_folder(Path(options["weights"]))
    for name in ("num_layers", "num_kv_heads", "head_size"):
        if getattr(arch.spec, name) != getattr(spec, name):
            raise InputError(
                f"{options['weights']}: {name} is {getattr(arch.spec, name)}, model.{name} is {getattr(spec, name)}; "
                "take the config's model from the folder"
            )
    return arch


def make_pool(config: dict[str, Any], spec: ModelSpec) -> PoolSpec:
    """The pools of one GPU, as a simulated run has them."""
    node = dict(config["server"])
    num_blocks, _ = node.pop("num_blocks", None), node.pop("kv_memory_of", None)
    server = make(node)
    if server.num_gpus != 1:
        raise InputError(f"server.num_gpus is {server.num_gpus}; the engine runs on one GPU")
    host_slots = int(config.get("swap_space_gib", 0) * GIB) // spec.kv_bytes_per_token
    layer_bytes = spec.kv_bytes_per_token // spec.num_layers
    tiers = host(host_slots, server.gpu.host_bandwidth)
    num_slots = num_blocks * config["policy"]["block_size"] if num_blocks else server.kv_slots(spec)
    return PoolSpec(num_slots, spec.max_len, tiers, layer_bytes, spec.num_layers, 1)


def make_requests(config: dict[str, Any]) -> list[Request]:
    """The requests of a table, or of trace and arrivals as a simulated run draws them."""
    workload = config.get("workload") or {}
    if config.get("requests"):
        return read_requests(Path(config["requests"]), workload)
    trace, arrivals, seed = make(config["trace"]), make(config["arrivals"]), config.get("seed", 0)
    if getattr(arrivals, "replays", False):
        rows = trace.rows(None, seed, workload.get("max_len"))
        times = arrivals.times_ps(rows, seed)
    else:
        times = arrivals.times_ps(None, seed)
        rows = trace.rows(len(times), seed, workload.get("max_len"))
    return list(Workload(rows, times, workload.get("num_seqs", 1), workload.get("beam", False)))


def read_requests(path: Path, workload: dict[str, Any]) -> list[Request]:
    """A table with the columns arrival_s or arrival_ps, prompt_len and output_len, in order of arrival."""
    found = []
    with path.open(newline="", encoding="utf-8") as file:
        for i, row in enumerate(csv.DictReader(file)):
            try:
                arrival_ps = int(row["arrival_ps"]) if "arrival_ps" in row else round(float(row["arrival_s"]) * PS)
                lengths = int(row["prompt_len"]), int(row["output_len"])
            except (KeyError, ValueError) as error:
                raise InputError(f"{path}, row {i}: {error}; it needs arrival_s, prompt_len, output_len") from None
            found.append(
                Request(i, arrival_ps, *lengths, int(workload.get("num_seqs", 1)), bool(workload.get("beam", False)))
            )
    return sorted(found, key=lambda r: r.arrival_ps)


def _made(value: Any) -> Any:
    return make(value) if isinstance(value, dict) and "_target_" in value else value


def _find(target: str) -> Callable[..., Any]:
    module, _, name = target.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]
    except ImportError as error:
        way_out = (
            "; give `requests`, a table of requests, instead of trace and arrivals" if "simpy" in str(error) else ""
        )
        raise InputError(f"{target} cannot be loaded: {error}{way_out}") from error
    except AttributeError:
        raise InputError(f"{target}: the module {module} has no {name}") from None
