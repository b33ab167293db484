"""Parts of a run that the caller has as objects, in place of those that a config names."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig

from experiments.runs.make import call, make
from testbed.core.errors import InputError
from testbed.cost.model import CostModel
from testbed.memory.policy import MemoryPolicy
from testbed.sched.beams import BeamModel
from testbed.sched.preemption import PreemptionRule
from testbed.sched.scheduler import Scheduler
from testbed.sim.arrivals import ArrivalProcess
from traces.reader import Trace

KINDS: dict[str, type] = {
    "policy": MemoryPolicy,
    "scheduler": Scheduler,
    "preemption": PreemptionRule,
    "cost": CostModel,
    "beams": BeamModel,
    "trace": Trace,
    "arrivals": ArrivalProcess,
}


@dataclass(frozen=True)
class Given:
    """Makes the parts of a config, by group; `objects` come before what the config names."""

    config: DictConfig
    objects: Mapping[str, Any]

    def make(self, group: str, *first: Any) -> Any:
        """The part; a class or function is called with `first` and the config's parameters, an object is itself."""
        kind = KINDS[group]
        if group not in self.objects:
            chosen: Any = make(self.config[group], *first)
            if kind is MemoryPolicy and not isinstance(chosen, kind):
                raise InputError(_no_kind(group, type(chosen)))
            return chosen
        given = self.objects[group]
        if isinstance(given, type) and not issubclass(given, kind):
            raise InputError(_no_kind(group, given))
        made: Any = given if is_made(given) else call(given, self.config[group], *first)
        if not isinstance(made, kind):
            raise InputError(_no_kind(group, given))
        if group == "policy" and is_made(given) and made.usage().allocated:
            raise InputError(f"policy is a {_name(given)} whose pool is in use; give a new one, or the class")
        return made


def is_made(given: Any) -> bool:
    """Whether it is an object already, and not a class or function that makes one."""
    return given is not None and (isinstance(given, tuple(KINDS.values())) or not callable(given))


def _no_kind(group: str, given: Any) -> str:
    kind = KINDS[group]
    return f"{group} is {_name(given)}, which is no {kind.__module__}.{kind.__qualname__}"


def _name(given: Any) -> str:
    return getattr(given, "__qualname__", None) or type(given).__qualname__
