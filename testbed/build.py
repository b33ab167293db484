"""From a configuration to the objects of a run: the one builder, of simulator and GPU engine
alike.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from testbed.config import RunConfig, Slo
from testbed.core.errors import InputError
from testbed.core.request import PS, Workload
from testbed.core.specs import ModelSpec
from testbed.cost.model import UNBOUNDED, CostModel
from testbed.description import describe
from testbed.engine.arrivals import ArrivalProcess
from testbed.machine import make_cost, make_pool
from testbed.memory.groups.grouped import Grouped
from testbed.memory.policy import MemoryPolicy, PoolSpec
from testbed.sched.beams import BeamModel, SyntheticBeams
from testbed.sched.preemption import PreemptionRule, Swap
from testbed.sched.scheduler import Scheduler
from testbed.traces.reader import Trace
from testbed.workload import make_workload

KINDS: Mapping[str, type] = {
    "policy": MemoryPolicy,
    "scheduler": Scheduler,
    "preemption": PreemptionRule,
    "cost": CostModel,
    "beams": BeamModel,
    "trace": Trace,
    "arrivals": ArrivalProcess,
}


@dataclass(frozen=True)
class Setup:
    """Everything that a run needs, the objectives that its summary counts by, and what the run
    is.
    """

    config: RunConfig
    workload: Workload
    scheduler: Scheduler
    beams: BeamModel
    cost: CostModel
    model: ModelSpec
    pool: PoolSpec
    window_ps: tuple[int, int] | None
    slo: Slo
    description: Mapping[str, Any]

    def part_ps(self, start_s: float, stop_s: float | None) -> tuple[int, int, int]:
        """Start and stop of the part to show, and where the run ends then: at the stop, or where it
        ends by itself.
        """
        stop_ps = UNBOUNDED if stop_s is None else round(stop_s * PS)
        return round(start_s * PS), stop_ps, min([stop_ps, *(self.window_ps or ())[1:]])


def build(config: RunConfig) -> Setup:
    """The objects of one run. Policy, cost model and scheduler get what they serve as first
    positional arguments.
    """
    _check_kinds(config)
    pool = make_pool(config)
    policy: Any = _kept("policy", config.policy.make("policy", pool))
    if config.policy.is_instance:
        if policy.usage().allocated:
            name = type(policy).__qualname__
            raise InputError(
                f"policy is a {name} whose pool is in use; give a new one, or the class"
            )
        pool = replace(pool, num_slots=policy.usage().total)
    elif isinstance(policy, Grouped):
        if config.server.num_blocks is not None and len(pool.groups) > 1:
            raise InputError(
                f"server.num_blocks={config.server.num_blocks}: counts blocks of all layers, and a "
                f"server "
                f"counts pages of {config.model.name}'s groups (give server.kv_memory_gib)"
            )
        pool = policy.pool
    elif config.model.states:
        raise InputError(
            f"model={config.model.name}: {config.model.states.num_layers} layers keep a state for "
            f"each "
            f"sequence, and {type(policy).__name__} stores none (policy=grouped does)"
        )
    cost = make_cost(config.cost, config.model, config.server, config.software)
    preemption = config.preemption.make("preemption", cost)
    _check_tiers(config, policy, preemption)
    scheduler = _kept("scheduler", config.scheduler.make("scheduler", policy, preemption))
    workload = make_workload(config)
    if workload.rows.registered_prefix and policy.shares:
        policy.register_prefix(workload.rows.registered_prefix)
    if getattr(policy, "reads_future", False):
        policy.foresee_prompts(workload.rows.prompts())
    beams = config.beams.make("beams")
    if not (isinstance(beams, SyntheticBeams) or workload.has_beams):
        raise InputError(
            f"beams is {type(beams).__name__}, and no request uses beam search (give "
            f"workload.beam=true "
            "and workload.num_seqs, or leave beams out)"
        )
    window_ps = (
        None
        if config.window_s is None
        else (round(config.window_s[0] * PS), round(config.window_s[1] * PS))
    )
    return Setup(
        config,
        workload,
        scheduler,
        beams,
        cost,
        config.model,
        pool,
        window_ps,
        config.slo,
        describe(config, pool, scheduler, cost),
    )


def _check_tiers(config: RunConfig, policy: MemoryPolicy, preemption: PreemptionRule) -> None:
    name = type(policy).__name__
    if isinstance(preemption, Swap) and not policy.moves_tiers:
        raise InputError(
            f"preemption=swap: {name} moves no sequences to the host (choose preemption=recompute, "
            f"or "
            "policy=paged)"
        )
    if isinstance(preemption, Swap) and config.swap_space_gib == 0:
        raise InputError(
            "preemption=swap: swap_space_gib=0 leaves no slots on the host (give swap_space_gib, "
            "or "
            "choose preemption=recompute)"
        )
    if config.server.tiers and not (policy.moves_in_background or policy.uses_tiers):
        raise InputError(
            f"server.tiers: {name} uses no tier but the swap space (choose policy=tiered, or leave "
            f"{', '.join(config.server.tiers)} out; a policy of yours that uses tiers has "
            f"uses_tiers = "
            "True)"
        )


def _check_kinds(config: RunConfig) -> None:
    for group, kind in KINDS.items():
        target = getattr(config, group).target
        if group == "trace" and isinstance(target, Workload):
            continue
        is_wrong_class = isinstance(target, type) and not issubclass(target, kind)
        if is_wrong_class or (getattr(config, group).is_instance and not isinstance(target, kind)):
            raise InputError(_no_kind(group, target))
    if config.scheduler.is_instance:
        raise InputError(
            "scheduler is an object already; give its class, which is made with the policy of the "
            "run"
        )


def _kept(group: str, built: Any) -> Any:
    if not isinstance(built, KINDS[group]):
        raise InputError(_no_kind(group, type(built)))
    return built


def _no_kind(group: str, value: Any) -> str:
    kind = KINDS[group]
    name = getattr(value, "__qualname__", None) or type(value).__qualname__
    return f"{group} is {name}, which is no {kind.__module__}.{kind.__qualname__}"
