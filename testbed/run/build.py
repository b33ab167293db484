"""From a configuration to the objects of a run: the one builder, of simulator and GPU engine
alike.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from testbed.core.errors import InputError
from testbed.core.request import PS, Workload
from testbed.core.specs import ModelSpec
from testbed.cost.model import UNBOUNDED, CostModel
from testbed.engine.engine_parts import EngineParts
from testbed.engine.mode import Mode
from testbed.memory.capabilities import Capabilities, capabilities_of
from testbed.memory.policy import MemoryPolicy, PoolSpec
from testbed.run.build_checks import (
    check_kinds,
    check_tiers,
    check_workload,
    checked,
)
from testbed.run.config import RunConfig, Slo
from testbed.run.description import (
    answers_note,
    contents_note,
    describe,
    samples_note,
    servers_of,
    trace_note,
)
from testbed.run.machine import cost_of, make_pool
from testbed.run.parts import Part
from testbed.run.served_parts import check_release_is_read, served_parameters
from testbed.run.speculating import check_speculation, speculative_cost
from testbed.run.summaries import CONTENTS, SAMPLES, UNREAD
from testbed.run.workload import make_workload
from testbed.sched.beam_search import BeamModel, SyntheticBeams
from testbed.sched.scheduler import Scheduler
from testbed.speculation.speculation import Speculation

if TYPE_CHECKING:
    from testbed.run.fleet_setup import FleetSetup


@dataclass(frozen=True)
class Setup:
    """Everything that a run needs, and the objectives that its summary counts by.

    parts, pool: of several engines those of the first. The pool is in the policy's own slots.
    """

    config: RunConfig
    workload: Workload
    parts: EngineParts
    pool: PoolSpec
    window_ps: tuple[int, int] | None
    slo: Slo
    fleet: "FleetSetup | None" = None

    @property
    def scheduler(self) -> Scheduler:
        return self.parts.scheduler

    @property
    def cost(self) -> CostModel:
        return self.parts.cost

    @property
    def model(self) -> ModelSpec:
        return self.config.model

    @cached_property
    def description(self) -> Mapping[str, Any]:
        """The run in a few words: every summary begins with it."""
        return {
            **describe(self.config, self.pool, self.scheduler, self.cost),
            **({} if self.fleet is None else servers_of(self.config, self.fleet.parts)),
            CONTENTS: contents_note(self.scheduler.memory, self.workload)
            or answers_note(self.scheduler.memory, self.workload),
            SAMPLES: samples_note(self.cost, self.workload),
            UNREAD: trace_note(self.config.trace, self.scheduler, self.workload),
        }

    @property
    def mode(self) -> Mode:
        """That of the config: totals are kept where the window begins, and the run ends with it."""
        start_ps, stop_ps = self.window_ps or (UNBOUNDED, UNBOUNDED)
        return Mode(self.config.fast_forward, (start_ps,), stop_ps)

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
        """True if one engine serves all, and never fails."""
        return self.fleet is None or not (len(self.fleet.parts) > 1 or self.fleet.rules.faults)

    def check_alone(self, what: str) -> None:
        """Raise InputError if the run has several engines, and `what` shows one."""
        if not self.is_alone:
            raise InputError(
                key="replicas",
                value=self.config.replicas,
                problem=f"{what} shows one engine",
                remedy=(
                    "leave replicas out, or read the column engine of requests.csv and "
                    "iterations.csv"
                ),
            )

    def part_ps(self, start_s: float, stop_s: float | None) -> tuple[int, int, int]:
        """Start and stop of the part to show, and the end of a run that shows it: the stop, or the
        end of the workload's window if that is earlier.
        """
        stop_ps = UNBOUNDED if stop_s is None else round(stop_s * PS)
        return round(start_s * PS), stop_ps, min([stop_ps, *(self.window_ps or ())[1:]])


def build(config: RunConfig, workload: Workload | None = None) -> Setup:
    """The objects of one run. Policy, cost model and scheduler get what they serve as first
    positional arguments. workload: that of the config's trace and arrivals by default.
    """
    check_kinds(config)
    if config.release is not None:
        check_release_is_read(config, config.release)
    speculation: Speculation | None = None
    if config.speculation is not None:
        speculation = checked("speculation", config.speculation.make("speculation"))
        check_speculation(config, speculation)
    lengths = dict[int, int]()
    scheduler, cost, pool = engine_of(config, lengths, speculation)
    workload = make_workload(config) if workload is None else workload
    check_workload(scheduler, workload)
    register_prefix(workload, scheduler.memory)
    if scheduler.memory.foresees_prompts is not None:
        scheduler.memory.foresees_prompts.foresee_prompts(workload.rows.prompts())
    beams = _beams(config, workload)
    parts = EngineParts(
        scheduler,
        cost,
        config.model.max_len,
        beams,
        lengths,
        pool=None if config.policy.is_instance else pool,  # a made policy has its own
        acceptance=None if speculation is None else speculation.acceptance,
    )
    window_s = config.window_s
    return Setup(
        config=config,
        workload=workload,
        parts=parts,
        pool=pool,
        window_ps=None if window_s is None else (round(window_s[0] * PS), round(window_s[1] * PS)),
        slo=config.slo,
        fleet=None if config.replicas is None else _fleet(config, config.replicas, workload, parts),
    )


def _fleet(
    config: RunConfig, replicas: int, workload: Workload, first: EngineParts
) -> "FleetSetup":
    """The engines behind a router, of which the first has these parts."""
    from testbed.run.fleet_setup import fleet_setup  # most runs have one engine

    return fleet_setup(config, replicas, workload, first)


def engine_of(
    config: RunConfig, lengths: dict[int, int], speculation: Speculation | None = None
) -> tuple[Scheduler, CostModel, PoolSpec]:
    """The scheduler of one engine, with its policy; its cost, and its pool in the policy's slots.
    lengths: what the oracles of the engine read.
    """
    policy, pool = _policy_and_pool(config, lengths, speculation)
    cost = cost_of(config)
    if speculation is not None:
        cost = speculative_cost(cost, speculation, config.model, config.server)
    preemption = _made(config, "preemption", lengths, cost)
    check_tiers(config, capabilities_of(policy), preemption)
    scheduler = _made(config, "scheduler", lengths, policy, preemption, speculation=speculation)
    return checked("scheduler", scheduler), cost, pool


def register_prefix(workload: Workload, memory: Capabilities) -> None:
    """Register the workload's prefix with a policy that keeps one."""
    if workload.rows.registered_prefix and memory.registers_prefixes is not None:
        memory.registers_prefixes.register_prefix(workload.rows.registered_prefix)


def _beams(config: RunConfig, workload: Workload) -> BeamModel:
    """The beams of the config; InputError if they are selected and no request uses them."""
    beams: BeamModel = config.beams.make("beams")
    if not (isinstance(beams, SyntheticBeams) or workload.has_beams):
        raise InputError(
            key="beams",
            value=type(beams).__name__,
            problem="no request uses beam search",
            remedy="give workload.beam=true and workload.num_seqs, or leave beams out",
        )
    return beams


def _policy_and_pool(
    config: RunConfig, lengths: dict[int, int], speculation: Speculation | None = None
) -> tuple[MemoryPolicy, PoolSpec]:
    """The policy, and its pool in the policy's own slots."""
    pool = make_pool(config, speculation)
    policy: MemoryPolicy = checked(
        "policy", _made(config, "policy", lengths, pool, speculation=speculation)
    )
    memory, model = capabilities_of(policy), config.model
    if config.policy.is_instance:
        if policy.usage().allocated:
            raise InputError(
                key="policy",
                value=type(policy).__qualname__,
                problem="its pool is in use",
                remedy="give a new one, or the class",
            )
        return policy, replace(pool, num_slots=policy.usage().total)
    if memory.layered is None and model.states:
        raise InputError(
            key="model",
            value=model.name,
            problem=(
                f"{model.states.num_layers} layers keep a state for each sequence, and "
                f"{memory.name} stores none"
            ),
            remedy="policy=grouped does",
        )
    if memory.layered is not None and config.server.num_blocks is not None and len(pool.groups) > 1:
        raise InputError(
            key="server.num_blocks",
            value=config.server.num_blocks,
            problem=(
                f"counts blocks of all layers, and a server counts pages of {model.name}'s groups"
            ),
            remedy=f"give 'server.kv_memory_gib={{{model.name}: GIB}}'",
        )
    return policy, memory.pool_in_slots(pool)


def _made(
    config: RunConfig,
    group: str,
    lengths: dict[int, int],
    *first: Any,
    speculation: Speculation | None = None,
) -> Any:
    """The object of a part, with what the run gives it besides the configured parameters."""
    part: Part = getattr(config, group)
    served = served_parameters(config, group, lengths, speculation)
    return part.updated(**served).make(group, *first)
