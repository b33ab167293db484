"""The plug-in API for schedulers."""

from abc import ABC, abstractmethod
from collections import deque
from itertools import count

from testbed.core.batch import Batch
from testbed.core.request import Request
from testbed.core.sequence import Sequence, SequenceGroup
from testbed.memory.policy import MemoryPolicy
from testbed.sched.plan import Outcome, Plan


class Scheduler(ABC):
    """Decides what the next iteration does; an engine does it and calls `commit`.

    waiting: not resident, first come first served, preempted groups in front. running: resident, in order of arrival.
    swapped: on the host. batch: the sequences of running groups that decode in lockstep.
    """

    def __init__(self, policy: MemoryPolicy) -> None:
        self.policy = policy
        self.waiting: deque[SequenceGroup] = deque()
        self.running: dict[int, SequenceGroup] = {}
        self.swapped: deque[SequenceGroup] = deque()
        self.batch = Batch()
        self._seq_ids = count()

    def add(self, request: Request) -> SequenceGroup:
        """Queue a request that has arrived."""
        oracle = self.policy.reads_output_len
        sequences = [Sequence(next(self._seq_ids), request, oracle=oracle) for _ in range(request.num_seqs)]
        group = SequenceGroup(request, sequences)
        self.waiting.append(group)
        return group

    @abstractmethod
    def plan(self) -> Plan:
        """Ask the policy for room, pick victims, and say what the next iteration does; a false plan means: nothing."""

    @abstractmethod
    def commit(self, plan: Plan, steps: int) -> Outcome:
        """The plan was carried out `steps` times, at most 1 + plan.horizon."""
