"""Policies whose slots may outlive their sequence, by a lease."""

from abc import abstractmethod

from testbed.core.sequence import Sequence
from testbed.core.slots import Keep, Lease
from testbed.memory.policy import MemoryPolicy


class LeasingPolicy(MemoryPolicy):
    """A sequence that is released with a lease keeps its slots until that ends."""

    def __init__(self) -> None:
        self._leased: dict[Lease, list[Sequence]] = {}

    def release(self, seq: Sequence, keep: Keep | Lease = Keep.CACHED) -> None:
        if isinstance(keep, Lease):
            self._leased.setdefault(keep, []).append(seq)
        else:
            self._give_back(seq, keep)

    def end_lease(self, lease: Lease) -> None:
        for seq in self._leased.pop(lease, ()):
            self._give_back(seq, Keep.CACHED)

    @abstractmethod
    def _give_back(self, seq: Sequence, keep: Keep) -> None:
        """The slots of a sequence come back, and what `keep` says stays."""
