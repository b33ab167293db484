"""The rules by which the engines of a fleet work together."""

from dataclasses import dataclass

from testbed.fleet.faults import Fault
from testbed.fleet.handovers.split import Split
from testbed.fleet.routers.router import Router
from testbed.fleet.routing_ahead import looks_at_engines


@dataclass(frozen=True)
class FleetRules:
    """The router that chooses the engine of each request, and what else engines have together.

    split: how the first engines prefill for the others; None: each engine does all. faults: engines
    that fail. shared_tiers: names of the tiers that all engines use.
    """

    router: Router
    split: Split | None = None
    faults: tuple[Fault, ...] = ()
    shared_tiers: tuple[str, ...] = ()

    @property
    def keep_apart(self) -> bool:
        """True if engines do not meet, and the router looks at none of them."""
        meet = self.split is not None or self.faults or self.shared_tiers
        return not (meet or looks_at_engines(self.router))
