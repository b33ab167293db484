"""Parts of one engine."""

from collections.abc import Callable
from dataclasses import dataclass

from testbed.cost.model import CostModel
from testbed.memory.pools import PoolSpec
from testbed.sched.beam_search import BeamModel
from testbed.sched.scheduler import Scheduler


@dataclass(frozen=True)
class EngineParts:
    """Parts of one engine; see `testbed.engine.simulation.simulated_engine`."""

    scheduler: Scheduler
    cost: CostModel
    max_len: int
    beams: BeamModel | None = None
    lengths: dict[int, int] | None = None
    pool: PoolSpec | None = None


MakeParts = Callable[[int], EngineParts]
