"""From config to objects; the one place that knows what a run is made of."""

from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig

from experiments.runs.config_checks import check_options, check_values
from experiments.runs.identity import plain
from experiments.runs.machine import make_cost, make_machine
from experiments.runs.make import make
from experiments.runs.pool import make_pool
from experiments.runs.workload import make_workload
from testbed.core.errors import InputError
from testbed.core.request import PS, Workload
from testbed.core.specs import ModelSpec
from testbed.cost.model import CostModel
from testbed.memory.policy import MemoryPolicy, PoolSpec
from testbed.sched.beams import BeamModel
from testbed.sched.scheduler import Scheduler


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
    model, server = make_machine(config)
    pool = make_pool(config, model, server)
    policy = make(config.policy, pool)
    if not isinstance(policy, MemoryPolicy):
        raise InputError(
            f"{type(policy).__name__} is no memory policy: it must be a testbed.memory.policy.MemoryPolicy"
        )
    cost = make_cost(config, model, server)
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


def _window_ps(window_s: Any) -> tuple[int, int] | None:
    if window_s is None:
        return None
    if not isinstance(window_s, list) or len(window_s) != 2 or not 0 <= window_s[0] < window_s[1]:
        raise InputError(f"window_s is {window_s}; give [from, to] in seconds, or null")
    return round(window_s[0] * PS), round(window_s[1] * PS)
