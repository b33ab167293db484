"""From config to objects; the one place that knows what a run is made of."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from omegaconf import DictConfig

from experiments.runs.config_checks import check_options, check_values
from experiments.runs.description import describe
from experiments.runs.given import Given, is_made
from experiments.runs.identity import plain
from experiments.runs.machine import make_cost, make_machine
from experiments.runs.pool import make_pool
from experiments.runs.workload import make_workload
from testbed.core.errors import InputError
from testbed.core.request import PS, Workload
from testbed.core.specs import ModelSpec
from testbed.cost.model import CostModel
from testbed.memory.policy import PoolSpec
from testbed.sched.beams import BeamModel
from testbed.sched.scheduler import Scheduler
from testbed.slo import Slo, checked_slo


@dataclass(frozen=True)
class Setup:
    """Everything that `simulate` needs, the objectives that its summary counts by, and what the run is."""

    workload: Workload
    scheduler: Scheduler
    beams: BeamModel
    cost: CostModel
    model: ModelSpec
    pool: PoolSpec
    window_ps: tuple[int, int] | None
    fast_forward: bool
    stop_at_latency: float | None
    slo: Slo
    description: Mapping[str, Any]


def build(config: DictConfig, objects: Mapping[str, Any] | None = None) -> Setup:
    """The objects of one run. Policy, cost and scheduler get what they serve as first positional arguments.

    `objects` stand in for what the config describes, by group: a class or a function takes the same arguments, any
    other object is used as it is.
    """
    values = plain(config)
    check_options(values)
    check_values(values)
    given = Given(config, objects or {})
    model, server = make_machine(config)
    pool = make_pool(config, model, server)
    policy = given.make("policy", pool)
    if is_made((objects or {}).get("policy")):
        pool = replace(pool, num_slots=policy.usage().total)
    cost = make_cost(config, model, server, given)
    scheduler = given.make("scheduler", policy, given.make("preemption", cost))
    workload = make_workload(config, given)
    if workload.rows.prefix and policy.shares:
        policy.register_prefix(workload.rows.prefix)
    if getattr(policy, "reads_future", False):
        policy.foresee_prompts(workload.rows.prompts())
    return Setup(
        workload,
        scheduler,
        given.make("beams"),
        cost,
        model,
        pool,
        _window_ps(values["window_s"]),
        bool(config.fast_forward),
        values["stop_at_latency"],
        slo_of(values),
        describe(values, model, server, pool, scheduler, cost, objects or ()),
    )


def slo_of(values: Mapping[str, Any]) -> Slo:
    """The objectives of a config; one of an older version has none."""
    slo = values.get("slo") or {}
    if not isinstance(slo, Mapping):
        raise InputError(f"slo is {slo!r}; give slo.ttft_s and slo.tpot_s, in seconds")
    return checked_slo(slo.get("ttft_s"), slo.get("tpot_s"))


def _window_ps(window_s: Any) -> tuple[int, int] | None:
    if window_s is None:
        return None
    if not isinstance(window_s, list) or len(window_s) != 2 or not 0 <= window_s[0] < window_s[1]:
        raise InputError(f"window_s is {window_s}; give [from, to] in seconds, or null")
    return round(window_s[0] * PS), round(window_s[1] * PS)
