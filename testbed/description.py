"""What a run was, in a few words: every summary and every table of runs begins with it."""

import inspect
import os
import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from typing import Any

from testbed.compiled import release
from testbed.config import RunConfig
from testbed.core.specs import GIB
from testbed.cost.model import CostModel
from testbed.cost.origin import origin, tested
from testbed.cost.transfers import transfers_origin
from testbed.identity import ROOT, code_hash
from testbed.memory.policy import PoolSpec
from testbed.parts import Part
from testbed.sched.scheduler import Scheduler

RUN = "run"
ID = "id"
PLAIN = (bool, int, float, str)


def describe(config: RunConfig, pool: PoolSpec, scheduler: Scheduler, cost: CostModel) -> dict[str, Any]:
    """Model, server, GPU, pool (slots, blocks, GiB), policy, scheduler, source of costs; the rest follows them.

    slot_layers: the layers of which a slot has a token's K and V, all but for a policy of several groups. pool_blocks
    and block_size (tokens) are None where the policy has no blocks; pool_gib is over all GPUs together.
    """
    model, server, policy = config.model, config.server, scheduler.policy
    size = getattr(policy, "block_size", None)
    block_size = size if isinstance(size, int) and size > 0 else None
    return {
        "model": model.name,
        "server": server.name,
        "gpu": server.gpu.name,
        "num_gpus": server.num_gpus,
        "pool_slots": pool.num_slots,
        "slot_layers": pool.num_layers,
        "pool_blocks": None if block_size is None else pool.num_slots // block_size,
        "block_size": block_size,
        "pool_gib": round(pool.num_slots * pool.layer_bytes * pool.num_layers / GIB, 4),
        "policy": _part(config.policy, policy),
        "scheduler": _part(config.scheduler, scheduler),
        "cost": cost_source(config, cost),
        "preemption": configured(config.preemption),
        "trace": configured(config.trace),
        "arrivals": configured(config.arrivals),
        "seed": config.seed,
        "cost_error": tested(cost, server),
        "scheduler_note": scheduler.note(min(model.max_len, config.workload.max_len or model.max_len)),
        **software(),
    }


def configured(value: Any) -> str:
    """A part of a config as one would write it in Python: `Paged(block_size=16, watermark=0.01)`."""
    if isinstance(value, Part):
        parameters = ", ".join(f"{key}={configured(one)}" for key, one in value.parameters.items())
        return f"{value.name.rpartition('.')[2]}({parameters})"
    if isinstance(value, Mapping):
        return f"({', '.join(f'{key}={configured(one)}' for key, one in value.items())})"
    return str(value)


def _part(part: Part, built: object) -> str:
    """The config's words; of a class or an object at hand, the plain parameters that it keeps under their names."""
    if part.is_named:
        return configured(part)
    names = [
        name for name in inspect.signature(type(built)).parameters if isinstance(getattr(built, name, None), PLAIN)
    ]
    return f"{type(built).__qualname__}({', '.join(f'{name}={getattr(built, name)}' for name in names)})"


def cost_source(config: RunConfig, cost: CostModel) -> str:
    times = {key: value for key, value in asdict(config.software).items() if key != "name"} if config.software else {}
    name, where = config.cost.name.rpartition(".")[2], origin(cost, times)
    if config.server.tiers:
        where = f"{where}; transfers: {transfers_origin(config.server)}".removeprefix("; ")
    return f"{name} ({where})" if where else name


@cache
def software() -> dict[str, str | None]:
    """Version, the commit where there is one (with + where files differ from it), and a hash of the simulator."""
    return {"version": release(), "commit": _commit(), "simulator": code_hash()[:16]}


def _commit() -> str | None:
    if not (ROOT.parent / ".git").exists():  # installed: a repository around it would be another one
        return None
    command = ["git", "-C", str(ROOT.parent), "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"]
    quiet = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5, env=quiet).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
