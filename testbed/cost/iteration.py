"""The time of an iteration, part by part: the sum in which both cost models of the testbed end."""

from abc import abstractmethod
from collections.abc import Callable, Mapping

from testbed.cost.model import CostModel, Moved, Work, extra_ps


class IterationCost(CostModel):
    """Computing, then block copies; moves hide behind both; then what nothing hides.

    Attributes:
        extra_s: seconds of each event that a policy counts, by its name.
        serving_ps: picoseconds of the host's work on an iteration that the GPU waits for.
    """

    extra_s: Mapping[str, float] = {}
    serving_ps: Callable[[Work], int]

    def iteration(self, work: Work) -> int:
        time_ps = self.computing_ps(work)
        if work.copies:
            time_ps += self.copying_ps(work.copies)
        if work.moves:
            time_ps = self.moving_behind(time_ps, work.moves)
        if work.extra:
            time_ps += extra_ps(work.extra, self.extra_s)
        return time_ps + self.serving_ps(work)

    @abstractmethod
    def computing_ps(self, work: Work) -> int:
        """Picoseconds of layers and attention, and of what the host does before the GPU begins.

        Args:
            work: what the iteration does.
        """

    @abstractmethod
    def copying_ps(self, copies: tuple[tuple[int, int], ...]) -> int:
        """Picoseconds of copies on the device.

        Args:
            copies: (length in slots, how many).
        """

    @abstractmethod
    def moving_behind(self, computing_ps: int, moves: tuple[Moved, ...]) -> int:
        """Picoseconds of an iteration that computes for computing_ps and moves blocks meanwhile.

        Args:
            computing_ps: what the moves may hide behind.
            moves: between tiers.
        """
