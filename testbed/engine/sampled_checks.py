"""Checks of plug-ins that take too long to be made every time."""

from testbed.core.slots import Grant, Usage
from testbed.cost.model import Work
from testbed.engine import audit
from testbed.sched.state import SchedulerState


class ExponentialSampling:
    """True on calls 1, 2, 4, 8, ..., so that checks stay cheap."""

    def __init__(self) -> None:
        self.count = 0

    def is_due(self) -> bool:
        """Count one call; whether it is to be checked."""
        self.count += 1
        return not self.count & (self.count - 1)


class SampledChecks:
    """The checks of the memory policy in a run, each kind sampled by itself."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._tables = ExponentialSampling()
        self._reads = ExponentialSampling()
        self._growth = ExponentialSampling()

    def tables(self, usage: Usage) -> None:
        """A prompt's slots were taken: the tables must agree with `usage`."""
        sampling = self._tables  # as by `is_due`: every prompt passes here
        sampling.count += 1
        if not sampling.count & (sampling.count - 1):
            audit.check_tables(self._state, usage)

    def repeated_reads(self, work: Work) -> None:
        """Decodes read shared slots: their number in `work` must agree with the tables."""
        if self._reads.is_due():
            audit.check_repeated(self._state.memory, self._state.batch, work)

    def growth(self, before: Usage, grown: Grant) -> None:
        """Several steps were taken at once: the growth that the policy reports must be that of its
        usage since `before`.
        """
        if self._growth.is_due():
            audit.check_growth(self._state.policy, before, grown)
