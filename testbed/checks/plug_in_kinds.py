"""The kind of plug-in that a class is."""

import inspect
from typing import Any

from testbed.cost.model import CostModel
from testbed.fleet.handovers.rule import HandoverRule
from testbed.fleet.routers.router import Router
from testbed.memory.policy import MemoryPolicy
from testbed.memory.prefix_cache.eviction.order import EvictionOrder
from testbed.sched.preemption import PreemptionRule
from testbed.sched.scheduler import Scheduler

KINDS = (
    MemoryPolicy,
    Scheduler,
    PreemptionRule,
    EvictionOrder,
    CostModel,
    Router,
    HandoverRule,
)


def kind_of(target: Any) -> type | None:
    """The one of KINDS from which a class derives; a function makes a policy."""
    if not inspect.isclass(target):
        return MemoryPolicy
    return next((kind for kind in KINDS if issubclass(target, kind)), None)
