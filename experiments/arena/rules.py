"""The rules under which entrants play: the scheduling of a system, and the memory that goes with
an entrant of each kind.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from testbed.experiments.arena.entrants import (
    EVICTION,
    LOAD,
    POLICY,
    REPLICAS,
    ROUTER,
    SCHEDULER,
    STORE,
    Entrant,
)
from testbed.experiments.arena.suites import BLOCK_SIZE, Case, Suite

PINNED = "policy=pinned_caching"  # finds what policy=prefix_caching finds; SGLang's can ask it
TIERED = "policy=tiered"


@dataclass(frozen=True)
class SystemWords:
    """The options of one system.

    words: besides its name. cached: the prefix cache by blocks that its scheduler can ask.
    has_groups: it serves several sequences as one request. spare_len: tokens by which its longest
    sequence must exceed a request that it does not cut.
    """

    words: tuple[str, ...] = ()
    cached: str = "policy=prefix_caching"
    has_groups: bool = True
    spare_len: int = 0


USUAL = SystemWords()
SYSTEMS: Mapping[str, SystemWords] = {
    "sglang": SystemWords(
        (f"policy.block_size={BLOCK_SIZE}",), PINNED, has_groups=False, spare_len=2
    ),
}


@dataclass(frozen=True)
class Rules:
    """A system's, by its name in `testbed list system`."""

    name: str

    @property
    def words(self) -> tuple[str, ...]:
        """The overrides of the system."""
        return (f"+system={self.name}", *self._system.words)

    @property
    def cached(self) -> str:
        """The policy whose eviction orders play."""
        return self._system.cached

    @property
    def spare_len(self) -> int:
        """Tokens of the longest sequence beyond the longest request."""
        return self._system.spare_len

    @property
    def _system(self) -> SystemWords:
        return SYSTEMS.get(self.name, USUAL)

    def of_kind(self, kind: str) -> tuple[str, ...]:
        """The overrides beside an entrant of a kind."""
        return {
            EVICTION: (self.cached,),
            POLICY: (),
            SCHEDULER: (PINNED, "policy.watermark=0.01"),
            ROUTER: (self.cached, f"replicas={REPLICAS}"),
            STORE: (TIERED,),
            LOAD: (TIERED,),
        }[kind]

    def words_of(self, entrant: Entrant) -> tuple[str, ...]:
        """The overrides of an entrant, with those beside it."""
        return (*self.of_kind(entrant.kind), *entrant.words)

    def serves(self, case: Case) -> bool:
        """True if the system serves the requests of a workload."""
        return self._system.has_groups or case.num_seqs == 1

    def left_out(self, suite: Suite) -> tuple[str, ...]:
        """The workloads of a suite whose requests the system rejects."""
        return tuple(case.name for case in suite.cases if not self.serves(case))
