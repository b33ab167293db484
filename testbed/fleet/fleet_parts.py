"""Parts of a fleet."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from testbed.engine.clock import Clock, Process
from testbed.engine.engine import Engine
from testbed.fleet.routers.router import Router
from testbed.fleet.shared_tiers import SharedTiers

MakeEngine = Callable[[int], Engine]


@dataclass(frozen=True)
class FleetParts:
    """Parts of a fleet.

    begin: lets the clock run the loop of an engine; its answers are in `Fleet.processes`.
    make_engine: a new engine of a number, called again when one comes back after a fault.
    """

    clock: Clock
    begin: Callable[[Process], Any]
    make_engine: MakeEngine
    num_engines: int
    router: Router
    tiers: SharedTiers
