"""Belady's optimum: an oracle to compare with."""

from collections import deque
from collections.abc import Iterable, Sequence

from testbed.core.errors import OracleError
from testbed.memory.prefix_cache.eviction.ranked import Ranked
from testbed.memory.prefix_cache.prefix_index import Node

NEVER = float("-inf")


class Belady(Ranked):
    """Evicts the block whose next use is last, or that is never used again.

    foresee() must give it every prompt's hash chain, and requested() moves its clock. Every use of
    a block is a use of its predecessors too, so it never leaves a block without them, and is a
    bound for every order if whole requests come and go one by one
    (testbed.memory.prefix_cache.replay says why). In a timed run it is one more heuristic.
    """

    def __init__(self) -> None:
        super().__init__()
        self._uses: dict[int, deque[int]] | None = None

    def foresee(self, prompts: Iterable[Sequence[int]]) -> None:
        self._uses = {}
        for time, chain in enumerate(prompts):
            for code in chain:
                self._uses.setdefault(code, deque()).append(time)

    def requested(self, chain: Sequence[int]) -> None:
        uses = self._future()
        for code in chain:
            if waiting := uses.get(code):
                waiting.popleft()

    def rank(self, node: Node) -> float:
        uses = self._future().get(node.code)
        return -uses[0] if uses else NEVER

    def _future(self) -> dict[int, deque[int]]:
        if self._uses is None:
            raise OracleError(
                "Belady's order reads the future: feed it with foresee() before the first prompt"
            )
        return self._uses
