"""Parts of one engine."""

from collections.abc import Callable
from dataclasses import dataclass, field

from testbed.cost.model import CostModel
from testbed.memory.pools import PoolSpec
from testbed.sched.beam_search import BeamModel, SyntheticBeams
from testbed.sched.scheduler import Scheduler
from testbed.speculation.acceptance import Acceptance


@dataclass(frozen=True)
class EngineParts:
    """Parts of one engine.

    beams: which candidates of a beam survive. lengths: filled with the true output lengths of the
    requests that are being served: what the oracles of the run were built with, if there are any.
    pool: the policy's configured pool, with which it is checked; None: the policy was made with its
    own. acceptance: how many drafts the model accepts, for a scheduler that plans some.
    """

    scheduler: Scheduler
    cost: CostModel
    max_len: int
    beams: BeamModel = field(default_factory=SyntheticBeams)
    lengths: dict[int, int] | None = None
    pool: PoolSpec | None = None
    acceptance: Acceptance | None = None


MakeParts = Callable[[int], EngineParts]
