"""What a run was, in one line: from its config alone, so that a run of any version can be named."""

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from experiments.compare.finished_run import FinishedRun


def what_it_was(run: FinishedRun) -> str:
    """Such as "Paged (blocks of 16), opt-13b on 1 x a100-40gb; sharegpt, 1 req/s, 600 s; MixedPrefill; seed 0"."""
    config = run.config
    machine = f"{_name(config, 'model')} on {_server(config.get('server'))}"
    work = ", ".join(_workload(config))
    rules = ", ".join(filter(None, (class_name(config.get(key)) for key in ("scheduler", "preemption"))))
    seed = f"seed {config['seed']}" if "seed" in config else ""
    real = "served by the engine" if run.on_gpu else ""
    parts = [f"{_policy(config.get('policy'))}, {machine}", work, rules, seed, real]
    return "; ".join(part for part in parts if part)


def class_name(node: Any) -> str:
    """The class that a config's node names, without its module."""
    return str(node.get("_target_", "")).rpartition(".")[2] if isinstance(node, dict) else ""


def _policy(node: Any) -> str:
    name = class_name(node) or "unknown policy"
    eviction = class_name(node.get("eviction")) if isinstance(node, dict) else ""
    size = f"blocks of {node['block_size']}" if isinstance(node, dict) and "block_size" in node else ""
    inside = ", ".join(filter(None, (size, eviction)))
    return f"{name} ({inside})" if inside else name


def _name(config: dict[str, Any], key: str) -> str:
    node = config.get(key)
    return str(node.get("name", "unknown")) if isinstance(node, dict) else "unknown"


def _server(node: Any) -> str:
    if not isinstance(node, dict):
        return "an unknown server"
    return f"{node.get('num_gpus', '?')} x {_name(node, 'gpu')}"


def _workload(config: dict[str, Any]) -> Iterator[str]:
    """Trace, rate, time, number of sequences."""
    trace, arrivals, workload = (config.get(key) or {} for key in ("trace", "arrivals", "workload"))
    source = config.get("requests") or trace.get("path") or trace.get("model")
    yield PurePath(str(source)).name if source else class_name(trace)
    if arrivals.get("rate") is not None:
        yield f"{arrivals['rate']:g} req/s"
    if arrivals.get("duration_s") is not None:
        yield f"{arrivals['duration_s']:g} s"
    if workload.get("num_seqs", 1) != 1:
        yield f"{'beams of' if workload.get('beam') else 'samples:'} {workload['num_seqs']}"
    if config.get("window_s"):
        yield f"averages from {config['window_s'][0]:g} to {config['window_s'][1]:g} s"
