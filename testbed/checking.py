"""`testbed.check`: whether a memory policy, a scheduler or a cost model keeps the contract."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from testbed.contract import ClauseBroken, check_policy
from testbed.contract.search import POOLS, MakePolicy
from testbed.core.errors import InputError
from testbed.core.renamed import check_members
from testbed.cost.model import CostModel
from testbed.cost_contract import check_cost
from testbed.fast_and_slow import LIMITS, MODEL, SERVER, differs
from testbed.memory.contiguous.contiguous import ContiguousMax
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import MemoryPolicy, PoolSpec, host
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.parts import called, locate
from testbed.sched.preemption import Recompute
from testbed.sched.scheduler import IterationLevel, Scheduler

# Under which a scheduler is checked; the first two may run out of slots while requests grow.
POLICIES: tuple[MakePolicy, ...] = (partial(Paged, block_size=8), partial(PrefixCaching, block_size=8), ContiguousMax)


def check(
    plug_in: str | Callable[..., Any],
    *,
    num_slots: int | None = None,
    max_len: int | None = None,
    host_slots: int | None = None,
    num_examples: int = 200,
    **parameters: Any,
) -> ClauseBroken | None:
    """The first clause of the contract that a plug-in breaks, with the shortest calls that do; None if it keeps all.

    plug_in: a class of policies, schedulers or cost models, a function that makes a policy of the PoolSpec, or
    MODULE:CLASS; parameters: those besides the pool. num_slots, max_len (tokens) and host_slots are used in place of
    those of the contract's pools. num_examples: random histories of a policy in each pool, or iterations of a cost
    model. A scheduler is simulated under three policies, every plan compared with what happens. Raises InputError for
    what is no such plug-in or cannot be made.
    """
    target: Any = plug_in
    if isinstance(plug_in, str):
        if ":" not in plug_in and "." not in plug_in:
            raise InputError(f"no class {plug_in!r}; give MODULE:CLASS")
        target = locate(plug_in.replace(":", "."), "plug-in")
    pools = _pools(num_slots, max_len, host_slots)
    if inspect.isclass(target) and issubclass(target, Scheduler):
        return _check_scheduler(target, pools, parameters)
    if inspect.isclass(target) and issubclass(target, CostModel):
        kind: Any = target
        make_cost = partial(kind, MODEL, SERVER, **parameters)
        called(make_cost, "cost", target.__name__)
        return check_cost(make_cost, num_examples)
    make = partial(target, **parameters)
    for pool in pools:
        built = called(partial(make, pool), "policy", f"what is made for {pool}")
        if not isinstance(built, MemoryPolicy):
            raise InputError(f"{type(built).__name__} is no MemoryPolicy")
        check_members("policy", built)
    broken = check_policy(make, pools, num_examples)
    return broken or next(filter(None, (differs(make, pool) for pool in pools)), None)


def _check_scheduler(kind: type[Scheduler], pools: list[PoolSpec], parameters: dict[str, Any]) -> ClauseBroken | None:
    """In every pool and under every policy that it goes with; needed limits that are not given are LIMITS."""
    requested = inspect.signature(kind).parameters
    is_unknown = not any(one.kind is one.POSITIONAL_OR_KEYWORD for one in requested.values())  # compiled
    takes_limits = is_unknown and issubclass(kind, IterationLevel)
    limits = {name: value for name, value in LIMITS.items() if name in requested or takes_limits}
    refusals = list[InputError]()
    for make in POLICIES:
        for pool in pools:
            wanted = {**limits, **parameters}
            called(partial(kind, make(pool), Recompute(), **wanted), "scheduler", kind.__name__)
            try:
                broken = differs(make, pool, [kind], wanted)
            except InputError as error:  # a scheduler may need another policy
                refusals.append(error)
                continue
            if broken:
                return broken
    if len(refusals) == len(POLICIES) * len(pools):
        raise refusals[0]
    return None


def _pools(num_slots: int | None, max_len: int | None, host_slots: int | None) -> list[PoolSpec]:
    for name, number, least in (("slots", num_slots, 1), ("max-len", max_len, 4), ("host-slots", host_slots, 0)):
        if number is not None and number < least:
            raise InputError(f"--{name} {number}: must be at least {least}")
    sizes: dict[str, Any] = {"num_slots": num_slots, "max_len": max_len}
    pools = [replace(pool, **{key: size for key, size in sizes.items() if size is not None}) for pool in POOLS]
    if host_slots is not None:
        pools = [replace(pool, tiers=(*host(host_slots), *pool.tiers[1:])) for pool in pools]
    return list(dict.fromkeys(pools))
