"""`testbed.check`: whether a plug-in of the kinds that have a contract keeps it."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

from testbed.checks.contract.clauses import ClauseBroken
from testbed.checks.contract.costs import check_cost
from testbed.checks.contract.order_contract import check_order
from testbed.checks.contract.questions import MakePolicy
from testbed.checks.contract.search import POOLS, UNSEEN, Progress, check_policy, tiers_below
from testbed.checks.fast_and_slow import (
    LIMITS,
    MODEL,
    SCHEDULERS,
    SERVER,
    MakeRule,
    differs,
    roofline,
)
from testbed.checks.handover_checks import check_handover
from testbed.checks.router_checks import check_router
from testbed.core.errors import InputError
from testbed.cost.model import CostModel
from testbed.fleet.handovers.rule import HandoverRule
from testbed.fleet.routers.router import Router
from testbed.memory.capabilities import capabilities_of
from testbed.memory.contiguous.reservations import ContiguousMax
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import MemoryPolicy, PoolSpec
from testbed.memory.prefix_cache.eviction.order import EvictionOrder
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.run.constructor_parameters import parameters_of
from testbed.run.oracles import with_lengths
from testbed.run.parts import Part, check_methods, locate, plug_in_errors
from testbed.sched.preemption import PreemptionRule, Recompute
from testbed.sched.scheduler import Scheduler
from testbed.sched.sglang import SGLang
from testbed.sched.sglang_overlap import OverlappedSGLang
from testbed.sched.vllm_v1 import VllmV1

# Under which a scheduler is checked; the first two may run out of slots while requests grow.
POLICIES: tuple[MakePolicy, ...] = (
    partial(Paged, block_size=8),
    partial(PrefixCaching, block_size=8),
    ContiguousMax,
)
KINDS = (
    MemoryPolicy,
    Scheduler,
    PreemptionRule,
    EvictionOrder,
    CostModel,
    Router,
    HandoverRule,
)
# Kinds that are checked by calls alone: the config group, and the check of what makes one
ALONE: Mapping[type, tuple[str, Callable[[Any, int], ClauseBroken | None]]] = {
    EvictionOrder: ("eviction", check_order),
    CostModel: ("cost", check_cost),
    Router: ("router", check_router),
    HandoverRule: ("handover", check_handover),
}


def check(
    plug_in: str | Callable[..., Any],
    *,
    num_slots: int | None = None,
    max_len: int | None = None,
    host_slots: int | None = None,
    num_examples: int = 200,
    progress: Progress = UNSEEN,
    **parameters: Any,
) -> ClauseBroken | None:
    """The first clause of the contract that a plug-in breaks, with the shortest calls that do; None
    if it keeps all.

    A scheduler is simulated under three policies, every plan compared with what happens; so is a
    preemption rule, under three schedulers. A router serves small fleets whose engines fail. Raises
    InputError for what is no such plug-in or cannot be made.

    Args:
        plug_in: a class of policies, eviction orders, schedulers, preemption rules, cost models,
            routers or hand-over rules, a function that makes a policy of the PoolSpec, or
            MODULE:CLASS.
        num_slots: slots of the device, in place of those of the contract's pools.
        max_len: tokens of the longest sequence, in place of those of the contract's pools.
        host_slots: slots of the host's pool, in place of those of the contract's pools.
        num_examples: random histories of a policy in each pool, of an eviction order or a fleet,
            iterations of a cost model, or prompts of a hand-over rule.
        progress: follows how many histories of a policy are done.
        **parameters: of the plug-in's constructor, besides the pool.
    """
    target = _located(plug_in)
    check_methods(target, "plug-in")
    Part(target, parameters).check_parameters(target, "")
    pools = _pools(num_slots, max_len, host_slots)
    pools = [with_tiers_taken(partial(target, **parameters), pool) for pool in pools]
    return _check(target, pools, num_examples, parameters, progress)


def _located(plug_in: str | Callable[..., Any]) -> Any:
    """The class or function itself. Raises InputError for a name that is none of a class."""
    if not isinstance(plug_in, str):
        return plug_in
    if ":" not in plug_in and "." not in plug_in:
        raise InputError(
            key="plug-in", value=plug_in, problem="is no class", remedy="give MODULE:CLASS"
        )
    return locate(plug_in.replace(":", "."), "plug-in")


def kind_of(target: Any) -> type | None:
    """The one of KINDS from which a class derives; a function makes a policy."""
    if not inspect.isclass(target):
        return MemoryPolicy
    return next((kind for kind in KINDS if issubclass(target, kind)), None)


def _check(
    target: Any,
    pools: list[PoolSpec],
    num_examples: int,
    parameters: dict[str, Any],
    progress: Progress,
) -> ClauseBroken | None:
    kind = kind_of(target)
    if kind is MemoryPolicy:
        return _check_policy(partial(target, **parameters), pools, num_examples, progress)
    if kind is Scheduler:
        return _check_scheduler(target, pools, {**_limits_of(target), **parameters})
    if kind is PreemptionRule:
        return _check_rule(partial(target, **parameters), pools)
    if kind is None:
        raise InputError(
            key=target.__name__,
            problem=f"is no {', '.join(other.__name__ for other in KINDS[:-1])} or "
            f"{KINDS[-1].__name__}",
            remedy="derive it from one of these; other plug-ins are checked by a run",
        )
    group, check_made = ALONE[kind]
    make = partial(target, *((MODEL, SERVER) if kind is CostModel else ()), **parameters)
    with plug_in_errors(group, target.__name__):
        make()
    return check_made(make, num_examples)


def _check_policy(
    make: Any, pools: list[PoolSpec], num_examples: int, progress: Progress
) -> ClauseBroken | None:
    """The first clause that a policy breaks; make: a function that makes it of a PoolSpec."""
    for pool in pools:
        with plug_in_errors("policy", f"the policy of a pool of {pool.num_slots} slots"):
            built = make(pool)
        if not isinstance(built, MemoryPolicy):
            raise InputError(
                key="policy",
                value=type(built).__name__,
                problem="is no MemoryPolicy",
                remedy="derive it from testbed.memory.policy.MemoryPolicy",
            )
    broken = check_policy(make, pools, num_examples, progress=progress)
    runs = (differs(make, pool, *_schedulers(make, pool)) for pool in pools)
    return broken or next(filter(None, runs), None)


def with_tiers_taken(make: MakePolicy, pool: PoolSpec) -> PoolSpec:
    """The pool with its last tier left out if a policy takes one tier less alone. Other faults
    of the plug-in are found by its check.
    """
    fewer = replace(pool, tiers=pool.tiers[:-1])
    return fewer if not _takes(make, pool) and _takes(make, fewer) else pool


def _takes(make: MakePolicy, pool: PoolSpec) -> bool:
    try:
        return isinstance(make(pool), MemoryPolicy)
    except Exception:
        return False


def _schedulers(
    make: MakePolicy, pool: PoolSpec
) -> tuple[tuple[type[Scheduler], ...], Mapping[str, Any]]:
    """The schedulers that serve a policy in short runs, with their parameters."""
    memory = capabilities_of(make(pool))
    if memory.loads_hits is not None:
        return (SGLang, OverlappedSGLang), {"max_running_requests": LIMITS["max_num_seqs"]}
    if memory.offloads is None:
        return SCHEDULERS, LIMITS
    options = {"long_prefill_token_threshold": 0, "scheduler_reserve_full_isl": True}
    return (VllmV1,), {**LIMITS, **options}


def _check_scheduler(
    kind: type[Scheduler], pools: list[PoolSpec], options: dict[str, Any]
) -> ClauseBroken | None:
    refusals = list[InputError]()
    for make, pool in product(POLICIES, pools):
        try:
            with plug_in_errors("scheduler", kind.__name__):
                with_lengths(kind, {})(make(pool), Recompute(), **options)
            broken = differs(make, pool, [kind], options)
        except InputError as error:  # a scheduler may need another policy
            refusals.append(error)
            continue
        if broken:
            return broken
    if len(refusals) == len(POLICIES) * len(pools):
        raise refusals[0]
    return None


def _check_rule(make_rule: MakeRule, pools: list[PoolSpec]) -> ClauseBroken | None:
    """The first clause that a preemption rule breaks, if single sequences and groups run out of
    slots.
    """
    with plug_in_errors("preemption", Part(make_rule).name):
        with_lengths(make_rule, {})(roofline())
    for make, pool in product(POLICIES, pools):
        broken = differs(make, pool, rules=[make_rule])
        if broken:
            return broken
    return None


def _limits_of(kind: type[Scheduler]) -> dict[str, Any]:
    parameters = parameters_of(kind)
    return {name: value for name, value in LIMITS.items() if parameters.has(name)}


def _pools(num_slots: int | None, max_len: int | None, host_slots: int | None) -> list[PoolSpec]:
    for name, number, least in (
        ("slots", num_slots, 1),
        ("max-len", max_len, 4),
        ("host-slots", host_slots, 0),
    ):
        if number is not None and number < least:
            raise InputError(key=f"--{name}", value=number, problem=f"must be at least {least}")
    sizes: dict[str, Any] = {"num_slots": num_slots, "max_len": max_len}
    pools = [
        replace(pool, **{key: size for key, size in sizes.items() if size is not None})
        for pool in POOLS
    ]
    if host_slots is not None:
        pools = [replace(pool, tiers=tiers_below(host_slots)) for pool in pools]
    return list(dict.fromkeys(pools))
