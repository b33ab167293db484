"""From a configuration to the objects of a run: the one builder, of simulator and GPU engine
alike.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from testbed.config import RunConfig, Slo
from testbed.core.errors import InputError
from testbed.core.request import PS, Workload
from testbed.core.specs import ModelSpec
from testbed.cost.model import UNBOUNDED, CostModel
from testbed.description import CONTENTS, contents_note, describe, servers_of
from testbed.engine.arrivals import ArrivalProcess
from testbed.fleet.faults import Fault, parse_faults
from testbed.fleet.handovers.rule import HandoverRule
from testbed.fleet.handovers.split import Split
from testbed.fleet.handovers.whole import Whole
from testbed.fleet.limits import check_fleet, check_split
from testbed.fleet.parts import EngineParts
from testbed.fleet.routers.round_robin import RoundRobin
from testbed.fleet.routers.router import Router
from testbed.machine import cost_of, make_pool
from testbed.memory.capabilities import Capabilities, capabilities_of
from testbed.memory.policy import MemoryPolicy, PoolSpec
from testbed.memory.protocols import ReadsColumns
from testbed.oracles import is_oracle
from testbed.parts import Part, locate
from testbed.sched.beams import BeamModel, SyntheticBeams
from testbed.sched.preemption import PreemptionRule, Swap
from testbed.sched.scheduler import Scheduler
from testbed.sched.time_to_live import TimeToLive
from testbed.speculating import check_requests, speculative_cost, with_drafts
from testbed.speculation.acceptance import Acceptance
from testbed.speculation.speculation import Speculation
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
    "router": Router,
    "handover": HandoverRule,
    "speculation": Speculation,
}


@dataclass(frozen=True)
class FleetSetup:
    """What several engines need besides a Setup. parts: of each engine, as they begin; make_parts:
    those of an engine that comes back.
    """

    parts: tuple[EngineParts, ...]
    make_parts: Callable[[int], EngineParts]
    router: Router
    faults: tuple[Fault, ...]
    split: Split | None


@dataclass(frozen=True)
class Setup:
    """Everything that a run needs, the objectives that its summary counts by, and what the run
    is.

    lengths: the mapping that the engine fills with true output lengths; the oracles of the run read
    it. acceptance: how many drafts are accepted, of a run with speculation. Of several engines
    the scheduler, the cost and the pool are those of the first.
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
    lengths: dict[int, int]
    fleet: FleetSetup | None = None
    acceptance: Acceptance | None = None

    @property
    def num_slots(self) -> int:
        """Slots of the KV pool, or of those of all engines together."""
        return sum(self.pool_of(number).num_slots for number in range(self.config.replicas or 1))

    def pool_of(self, number: int) -> PoolSpec:
        """The pool of an engine, by its number."""
        own = None if self.fleet is None else self.fleet.parts[number].pool
        return own or self.pool

    @property
    def is_alone(self) -> bool:
        """Whether one engine serves all, and never fails."""
        return self.fleet is None or not (len(self.fleet.parts) > 1 or self.fleet.faults)

    def check_alone(self, what: str) -> None:
        """Raise InputError where the run has several engines, and `what` shows one."""
        if not self.is_alone:
            raise InputError(
                f"replicas={self.config.replicas}: {what} shows one engine (leave replicas out, or "
                f"read the column engine of requests.csv and iterations.csv)"
            )

    def part_ps(self, start_s: float, stop_s: float | None) -> tuple[int, int, int]:
        """Start and stop of the part to show, and where the run ends then: at the stop, or where it
        ends by itself.
        """
        stop_ps = UNBOUNDED if stop_s is None else round(stop_s * PS)
        return round(start_s * PS), stop_ps, min([stop_ps, *(self.window_ps or ())[1:]])


def build(config: RunConfig, workload: Workload | None = None) -> Setup:
    """The objects of one run. Policy, cost model and scheduler get what they serve as first
    positional arguments. workload: that of the config's trace and arrivals by default.
    """
    _check_kinds(config)
    lengths = dict[int, int]()
    asked, speculation = config, _speculation(config)
    if speculation is not None:
        config = with_drafts(config, speculation)
    policy, pool = _policy_and_pool(config, lengths, speculation)
    memory = capabilities_of(policy)
    cost = cost_of(config)
    if speculation is not None:
        cost = speculative_cost(cost, speculation, config.model, config.server)
    preemption = _made(config, "preemption", lengths, cost)
    _check_tiers(config, memory, preemption)
    scheduler = _checked("scheduler", _made(config, "scheduler", lengths, policy, preemption))
    workload = make_workload(config) if workload is None else workload
    _check_workload(config, memory, workload)
    _check_columns(scheduler, memory, workload)
    if speculation is not None:
        check_requests(workload)
    _register(memory, workload)
    if memory.foresees_prompts is not None:
        memory.foresees_prompts.foresee_prompts(workload.rows.prompts())
    beams = _beams(config, workload)
    fleet = fleet_setup(config, workload, scheduler, cost, pool, beams, lengths)
    return Setup(
        asked,
        workload,
        scheduler,
        beams,
        cost,
        config.model,
        pool,
        _window_ps(config),
        config.slo,
        {
            **describe(asked, pool, scheduler, cost),
            **({} if fleet is None else servers_of(config, fleet.parts)),
            CONTENTS: contents_note(memory, workload),
        },
        lengths,
        fleet,
        None if speculation is None else speculation.acceptance,
    )


def _window_ps(config: RunConfig) -> tuple[int, int] | None:
    if config.window_s is None:
        return None
    start_s, stop_s = config.window_s
    return round(start_s * PS), round(stop_s * PS)


def _speculation(config: RunConfig) -> Speculation | None:
    if config.speculation is None:
        return None
    return _checked("speculation", config.speculation.make("speculation"))  # type: ignore[no-any-return]


def _beams(config: RunConfig, workload: Workload) -> BeamModel:
    """The beams of the config; InputError if they are selected and no request uses them."""
    beams: BeamModel = config.beams.make("beams")
    if not (isinstance(beams, SyntheticBeams) or workload.has_beams):
        raise InputError(
            f"beams is {type(beams).__name__}, and no request uses beam search (give "
            f"workload.beam=true "
            "and workload.num_seqs, or leave beams out)"
        )
    return beams


def fleet_setup(
    config: RunConfig,
    workload: Workload,
    scheduler: Scheduler,
    cost: CostModel,
    pool: PoolSpec,
    beams: BeamModel,
    lengths: dict[int, int],
) -> FleetSetup | None:
    """The engines behind a router, the first of which has these parts; None for a run without
    one. Raises InputError for what is not modelled with several engines.
    """
    if config.replicas is None:
        return None
    router = _router(config)
    check_fleet(config, workload, scheduler, router)
    checked_pool = None if config.policy.is_instance else pool  # a made policy has its own
    first = EngineParts(scheduler, cost, config.model.max_len, beams, lengths, checked_pool)

    def make_parts(number: int) -> EngineParts:
        own, own_lengths = config.of_engine(number), dict[int, int]()
        policy, own_pool = _policy_and_pool(own, own_lengths)
        own_cost = cost_of(own)
        preemption = _made(own, "preemption", own_lengths, own_cost)
        _check_tiers(own, capabilities_of(policy), preemption)
        own_scheduler = _made(own, "scheduler", own_lengths, policy, preemption)
        _register(capabilities_of(policy), workload)
        return EngineParts(
            own_scheduler, own_cost, config.model.max_len, beams, own_lengths, own_pool
        )

    others = [make_parts(number) for number in range(1, config.replicas)]
    faults = () if config.faults is None else parse_faults(config.faults, config.replicas)
    split = split_of(config, workload, scheduler)
    return FleetSetup((first, *others), make_parts, router, faults, split)


def _router(config: RunConfig) -> Router:
    if config.router is None:
        return RoundRobin()
    return _checked("router", config.router.make("router"))  # type: ignore[no-any-return]


def split_of(config: RunConfig, workload: Workload, scheduler: Scheduler) -> Split | None:
    """How the first engines prefill for the others; None where each does all. The decode engine of
    a request is chosen by a second router of the same kind.
    """
    if config.prefill_replicas is None:
        return None
    rule = Whole()
    if config.handover is not None:
        rule = _checked("handover", config.handover.make("handover"))
    check_split(config, workload, scheduler)
    model = config.model
    return Split(
        config.prefill_replicas,
        rule,
        _router(config),
        model.kv_bytes_per_token,
        model.num_attention_layers,
    )


def _register(memory: Capabilities, workload: Workload) -> None:
    if workload.rows.registered_prefix and memory.registers_prefixes is not None:
        memory.registers_prefixes.register_prefix(workload.rows.registered_prefix)


def _policy_and_pool(
    config: RunConfig, lengths: dict[int, int], speculation: Speculation | None = None
) -> tuple[MemoryPolicy, PoolSpec]:
    """The policy, and its pool in the policy's own slots."""
    pool = make_pool(config, speculation)
    policy: MemoryPolicy = _checked("policy", _made(config, "policy", lengths, pool))
    memory, model = capabilities_of(policy), config.model
    if config.policy.is_instance:
        if policy.usage().allocated:
            raise InputError(
                f"policy is a {type(policy).__qualname__} whose pool is in use; give a new one, or "
                f"the class"
            )
        return policy, replace(pool, num_slots=policy.usage().total)
    if memory.layered is None and model.states:
        raise InputError(
            f"model={model.name}: {model.states.num_layers} layers keep a state for each sequence, "
            f"and {memory.name} stores none (policy=grouped does)"
        )
    if memory.layered is not None and config.server.num_blocks is not None and len(pool.groups) > 1:
        raise InputError(
            f"server.num_blocks={config.server.num_blocks}: counts blocks of all layers, and a "
            f"server counts pages of {model.name}'s groups (give server.kv_memory_gib)"
        )
    return policy, memory.pool_in_slots(pool)


def _made(config: RunConfig, group: str, lengths: dict[int, int], *first: Any) -> Any:
    """The object of a part; an oracle gets a view of the true output lengths."""
    part: Part = getattr(config, group)
    if part.is_instance:
        return part.make(group, *first)
    target = locate(part.target, group) if isinstance(part.target, str) else part.target
    if is_oracle(target):
        part = part.updated(lengths=MappingProxyType(lengths))
    return part.make(group, *first)


def _check_workload(config: RunConfig, memory: Capabilities, workload: Workload) -> None:
    """A policy that serves no request of the workload is refused before the run."""
    num_seqs, longest = workload.num_seqs, memory.policy.max_seq_len
    is_uniform = workload.rows.num_seqs is None and num_seqs > 1
    if is_uniform and longest(1, num_seqs) == 0 < longest(1, 1):
        raise InputError(
            f"workload.num_seqs={num_seqs}: {memory.name} can hold no request of {num_seqs} "
            f"sequences (give a smaller number, or choose another policy or pool)"
        )


def _check_columns(scheduler: Scheduler, memory: Capabilities, workload: Workload) -> None:
    """A scheduler, or an eviction order, that decides by what no request has is refused: it would
    run as another one under its name.
    """
    if isinstance(scheduler, TimeToLive) and memory.publishes is None:
        raise InputError(
            f"scheduler=time_to_live: {memory.name} finds nothing of an answered request, whose "
            f"slots would be kept for nobody (choose policy=prefix_caching, or another policy that "
            f"has lookup())"
        )
    there = workload.optional_fields()
    for reader in (scheduler, memory.reads_columns):
        missing = [
            name
            for name in (reader.columns_read() if isinstance(reader, ReadsColumns) else ())
            if name not in there
        ]
        if missing:
            part = "scheduler" if reader is scheduler else "policy.eviction"
            raise InputError(
                f"{part}: {type(reader).__name__} decides by the {missing[0]} of a request, and no "
                f"request of the trace has one (choose a trace that has, or another {part})"
            )


def _check_tiers(config: RunConfig, memory: Capabilities, preemption: PreemptionRule) -> None:
    if isinstance(preemption, Swap) and memory.swaps is None:
        raise InputError(
            f"preemption=swap: {memory.name} moves no sequences to the host (choose "
            f"preemption=recompute, or policy=paged)"
        )
    if isinstance(preemption, Swap) and config.swap_space_gib == 0:
        raise InputError(
            "preemption=swap: swap_space_gib=0 leaves no slots on the host (give swap_space_gib, "
            "or choose preemption=recompute)"
        )
    if config.server.tiers and memory.stores_below is None:
        raise InputError(
            f"server.tiers: {memory.name} uses no tier but the swap space (choose policy=tiered, "
            f"or leave {', '.join(config.server.tiers)} out; a policy of yours that uses tiers has "
            f"tier_slots())"
        )


def _check_kinds(config: RunConfig) -> None:
    for group, kind in KINDS.items():
        if getattr(config, group) is None:
            continue
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


def _checked(group: str, built: Any) -> Any:
    if not isinstance(built, KINDS[group]):
        raise InputError(_no_kind(group, type(built)))
    return built


def _no_kind(group: str, value: Any) -> str:
    kind = KINDS[group]
    name = getattr(value, "__qualname__", None) or type(value).__qualname__
    return f"{group} is {name}, which is no {kind.__module__}.{kind.__qualname__}"
