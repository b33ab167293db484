"""Places of the groups of a scheduler: waiting, running or swapped out, in the batch or not."""

from collections import deque

from testbed.core.sequence import RUNNING, SWAPPED, Batch, SequenceGroup, SequenceStatus
from testbed.sched.orders import FIRST_COME, Order


class Queues:
    """The groups by their whereabouts. Nothing here knows of memory.

    Attributes:
        waiting: groups in order of service, preempted ones in front.
        loading: groups that have slots for what is loaded into them, and are not running yet.
        running: groups that were admitted, by request id in order of admission.
        swapped: groups on the host, the first to come back in front.
        batch: the sequences that decode in lockstep.
        beams: the groups of the batch that search with beams, by request id.
        num_seqs: running sequences.
        ended: groups that have their whole output, and keep their slots until the results of their
            last iteration are in.
        ranking: of requests.
    """

    def __init__(self) -> None:
        self.waiting: deque[SequenceGroup] = deque()
        self.loading: list[SequenceGroup] = []
        self.running: dict[int, SequenceGroup] = {}
        self.swapped: deque[SequenceGroup] = deque()
        self.batch = Batch()
        self.beams: dict[int, SequenceGroup] = {}
        self.num_seqs = 0
        self.ended: list[SequenceGroup] = []
        self.ranking: Order = FIRST_COME

    @property
    def num_waiting(self) -> int:
        """Groups that wait to run, whether or not something is loaded for them."""
        return len(self.waiting) + len(self.loading)

    @property
    def num_queued_seqs(self) -> int:
        """Sequences of the groups that wait, load or are swapped out."""
        return sum(group.request.num_seqs for group in self._queued)

    def find(self, request_id: int) -> SequenceGroup | None:
        """The group of a request that waits, loads, runs or is swapped out."""
        if group := self.running.get(request_id):
            return group
        return next((group for group in self._queued if group.request_id == request_id), None)

    @property
    def _queued(self) -> tuple[SequenceGroup, ...]:
        return *self.waiting, *self.loading, *self.swapped

    def leave_queue(self, group: SequenceGroup) -> None:
        """The group, which does not run, is in no queue any more."""
        if group in self.loading:
            self.loading.remove(group)
        else:
            (self.swapped if group.status is SWAPPED else self.waiting).remove(group)

    def add_running(self, group: SequenceGroup, status: SequenceStatus) -> None:
        """The group runs from now on, behind all others."""
        group.status = status
        self.running[group.request_id] = group
        self.num_seqs += len(group.sequences)

    def remove_running(self, group: SequenceGroup, status: SequenceStatus) -> None:
        """The group does not run any more."""
        group.status = status
        del self.running[group.request_id]
        self.num_seqs -= len(group.sequences)

    def join_batch(self, group: SequenceGroup) -> None:
        """The group decodes with the batch from the next step on."""
        group.status = RUNNING
        group.join_batch(self.batch)
        if group.request.beam:
            self.beams[group.request_id] = group

    def leave_batch(self, group: SequenceGroup) -> None:
        """The group decodes no more, if it did."""
        if group.batch is not None:
            if self.beams:
                self.beams.pop(group.request_id, None)
            group.leave_batch()
