"""Checks that parts of a run can be built, and fit together; others are refused before the run."""

from typing import Any

from testbed.core.errors import InputError
from testbed.core.request import Column, Workload
from testbed.memory.capabilities import Capabilities
from testbed.run.config import RunConfig
from testbed.run.parts import locate
from testbed.sched.preemption import (
    PreemptionRule,
    Recompute,
    RecomputeSingleSwapGroup,
    Swap,
)
from testbed.sched.scheduler import Scheduler

KINDS = {  # by name, for most runs have no fleet and no drafts
    "policy": "testbed.memory.policy.MemoryPolicy",
    "scheduler": "testbed.sched.scheduler.Scheduler",
    "preemption": "testbed.sched.preemption.PreemptionRule",
    "cost": "testbed.cost.model.CostModel",
    "beams": "testbed.sched.beam_search.BeamModel",
    "trace": "testbed.traces.reader.Trace",
    "arrivals": "testbed.engine.arrivals.ArrivalProcess",
    "router": "testbed.fleet.routers.router.Router",
    "handover": "testbed.fleet.handovers.rule.HandoverRule",
    "speculation": "testbed.speculation.speculation.Speculation",
}

# The option that gives a column which a trace lacks; other columns come with a trace alone
SOURCES = {"max_new_tokens": "give workload.max_new_tokens"}

# Rules by which single sequences are computed again
RECOMPUTING = (Recompute, RecomputeSingleSwapGroup)

# Of these a named class is refused too; the others are served by what they answer
DERIVED = ("policy", "scheduler", "router", "handover", "speculation")


def check_kinds(config: RunConfig) -> None:
    """Raise InputError for a class or object that is not of its group's kind."""
    for group, part in config.parts.items():
        kind: Any = locate(KINDS[group], group)
        is_located = part.is_named and group in DERIVED
        target = locate(part.target, group) if is_located else part.target
        if group == "trace" and isinstance(target, Workload):
            continue
        is_wrong_class = isinstance(target, type) and not issubclass(target, kind)
        if is_wrong_class or (part.is_instance and not isinstance(target, kind)):
            raise _no_kind(group, target)
    if config.scheduler.is_instance:
        raise InputError(
            key="scheduler",
            problem="is an object already",
            remedy="give its class, which is made with the policy of the run",
        )


def checked(group: str, built: Any) -> Any:
    """The built part. Raises InputError if it is not of its group's kind."""
    kind: Any = locate(KINDS[group], group)
    if not isinstance(built, kind):
        raise _no_kind(group, type(built))
    return built


def _no_kind(group: str, value: Any) -> InputError:
    name = getattr(value, "__qualname__", None) or type(value).__qualname__
    remedy = "derive it from that class"
    return InputError(key=group, value=name, problem=f"is no {KINDS[group]}", remedy=remedy)


def check_tiers(config: RunConfig, memory: Capabilities, preemption: PreemptionRule) -> None:
    """Raise InputError for tiers that the policy does not use, or that are not there."""
    if isinstance(preemption, Swap) and memory.swaps is None:
        raise InputError(
            key="preemption",
            value="swap",
            problem=f"{memory.name} moves no sequences to the host",
            remedy="choose preemption=recompute, or policy=paged",
        )
    if isinstance(preemption, Swap) and config.swap_space_gib == 0:
        raise InputError(
            key="preemption",
            value="swap",
            problem="swap_space_gib=0 leaves no slots on the host",
            remedy="give swap_space_gib, or choose preemption=recompute",
        )
    if config.server.tiers and memory.stores_below is None:
        raise InputError(
            key="server.tiers",
            problem=f"{memory.name} uses no tier but the swap space",
            remedy=(
                f"choose policy=tiered, or leave {', '.join(config.server.tiers)} out; a policy of "
                "yours that uses tiers has tier_slots()"
            ),
        )


def check_workload(scheduler: Scheduler, workload: Workload) -> None:
    """Raise InputError if scheduler or policy can serve no request of the workload, or decide by
    what no request has: they would run as others under their names.
    """
    if scheduler.names_victims:
        _check_victims(scheduler)
    if workload.num_seqs > 1 or workload.has_beams:
        _check_num_sequences(scheduler, workload)
    if scheduler.state.retention is not None:
        _check_answers_are_found(scheduler.memory)
    if scheduler.ends_at_declared and workload.rows.max_new_tokens is not None:
        _check_fixed_outputs(workload.rows.max_new_tokens, workload.rows.output_len)
    for part, reader in {
        **scheduler.readers,
        "policy.eviction": scheduler.memory.reads_columns,
    }.items():
        columns = () if reader is None else reader.columns_read()
        missing = [name for name in columns if name not in workload.optional_fields()]
        if missing:
            raise InputError(
                key=part,
                problem=(
                    f"{type(reader).__name__} decides by the {missing[0]} of a request, and no "
                    "request of the trace has one"
                ),
                remedy=f"{SOURCES.get(missing[0], 'choose a trace that has')}, or another {part}",
            )


def _check_fixed_outputs(declared: Column, outputs: Column) -> None:
    if (declared != outputs).any():
        row = int((declared != outputs).argmax())
        raise InputError(
            key="scheduler.ignore_eos",
            value="true",
            problem=(
                f"row {row} declares {declared[row]} output tokens and generates {outputs[row]}"
            ),
            remedy="workload.max_new_tokens=1x, or scheduler.ignore_eos=false",
        )


def _check_victims(scheduler: Scheduler) -> None:
    """Raise InputError for a rule that the scheduler would not follow."""
    rule = scheduler.preemption
    if not isinstance(rule, RECOMPUTING):
        raise InputError(
            key="preemption",
            value=type(rule).__name__,
            problem=(
                f"{type(scheduler).__name__} chooses its victims itself, and computes them again"
            ),
            remedy="preemption=recompute",
        )


def _check_num_sequences(scheduler: Scheduler, workload: Workload) -> None:
    """Refuse requests of several sequences if decodes step one by one, or if none would fit."""
    if scheduler.steps_in_turn:
        raise InputError(
            key="workload.num_seqs",
            problem=(
                "parallel samples and beams are not modelled with drafts, or in order of rank with "
                "scheduler=vllm_v1"
            ),
            remedy="workload.num_seqs=1, or leave speculation and order out",
        )
    memory, num_seqs = scheduler.memory, workload.num_seqs
    longest = memory.policy.max_seq_len
    is_uniform = workload.rows.num_seqs is None and num_seqs > 1
    if is_uniform and longest(1, num_seqs) == 0 < longest(1, 1):
        raise InputError(
            key="workload.num_seqs",
            value=num_seqs,
            problem=f"{memory.name} can hold no request of {num_seqs} sequences",
            remedy="give a smaller number, or choose another policy or pool",
        )


def _check_answers_are_found(memory: Capabilities) -> None:
    if memory.publishes is None:
        raise InputError(
            key="order",
            value="time_to_live",
            problem=(
                f"{memory.name} finds nothing of an answered request, whose slots would "
                "be kept for no reader"
            ),
            remedy="choose policy=prefix_caching, or another policy that has lookup()",
        )
