"""What a run was, in a few words: every summary and every table of runs begins with it."""

import inspect
import os
import subprocess
from collections.abc import Collection, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from experiments.runs.constructors import constructor
from experiments.runs.identity import simulator_hash
from testbed.core.specs import GIB, ModelSpec, ServerSpec
from testbed.cost.model import CostModel
from testbed.memory.policy import MemoryPolicy, PoolSpec
from testbed.sched.scheduler import Scheduler

RUN = "run"
ID = "id"
DISTRIBUTION = "kvcache-testbed"
PLAIN = (bool, int, float, str)
ROOT = Path(__file__).parents[2]


def describe(
    values: Mapping[str, Any],
    model: ModelSpec,
    server: ServerSpec,
    pool: PoolSpec,
    scheduler: Scheduler,
    cost: CostModel,
    objects: Collection[str],
) -> dict[str, Any]:
    """Model, server, GPU, pool (slots, blocks, GiB), policy, scheduler, source of prices; the rest behind them.

    pool_blocks and block_size (tokens) are None where the policy has no blocks; pool_gib is over all GPUs together.
    Parts that came as `objects` are told by what they have, the others by the config's values.
    """
    policy = scheduler.policy
    block_size = block_size_of(policy)
    return {
        "model": model.name,
        "server": server.name,
        "gpu": server.gpu.name,
        "num_gpus": server.num_gpus,
        "pool_slots": pool.num_slots,
        "pool_blocks": None if block_size is None else pool.num_slots // block_size,
        "block_size": block_size,
        "pool_gib": round(pool.num_slots * model.kv_bytes_per_token / GIB, 4),
        "policy": has(policy) if "policy" in objects else told(values["policy"]),
        "scheduler": has(scheduler) if "scheduler" in objects else told(values["scheduler"]),
        "cost": cost_source(values["cost"], cost),
        "preemption": told(values["preemption"]),
        "trace": told(values["trace"]),
        "arrivals": told(values["arrivals"]),
        "seed": values["seed"],
        **software(),
    }


def block_size_of(policy: MemoryPolicy) -> int | None:
    """Tokens of a policy's blocks; None where it has none."""
    size = getattr(policy, "block_size", None)
    return size if isinstance(size, int) and size > 0 else None


def told(node: Any) -> str:
    """A part of a config as one would write it in Python: `Paged(block_size=16, watermark=0.01)`."""
    if not isinstance(node, Mapping):
        return str(node)
    name = str(node.get("_target_", "")).rpartition(".")[2]
    parameters = (f"{key}={told(value)}" for key, value in node.items() if not str(key).startswith("_"))
    return f"{name}({', '.join(parameters)})"


def has(part: object) -> str:
    """The same of an object, as far as it keeps the plain parameters of its constructor under their names."""
    parameters = inspect.signature(constructor(type(part))).parameters
    names = [name for name in parameters if isinstance(getattr(part, name, None), PLAIN)]
    return f"{type(part).__qualname__}({', '.join(f'{name}={getattr(part, name)}' for name in names)})"


def cost_source(node: Mapping[str, Any], cost: CostModel) -> str:
    """Where the prices come from: the class, and of a profile where it was measured."""
    origin = getattr(cost, "fingerprint", None)
    name = str(node["_target_"]).rpartition(".")[2]
    if not origin:
        return name
    device = f"{origin.get('source', 'from')} on {origin.get('device')}"
    if "from" in origin:
        device = f"derived for {origin.get('device')} from {origin['from'].get('device')}"
    return f"{name} ({device})"


@cache
def software() -> dict[str, str | None]:
    """Version, the commit where there is one (with + where files differ from it), and a hash of the simulator."""
    try:
        release = version(DISTRIBUTION)
    except PackageNotFoundError:
        release = None
    return {"version": release, "commit": _commit(), "simulator": simulator_hash()[:16]}


def _commit() -> str | None:
    if not (ROOT / ".git").exists():  # installed: a repository around it would be somebody else's
        return None
    command = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"]
    quiet = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5, env=quiet).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
