"""What the model will say: how long every output is, and which beams survive. The future, known to
the engine alone.
"""

import heapq

from testbed.core.request import Request
from testbed.core.sequence import SequenceStatus
from testbed.core.slots import record
from testbed.sched.beams import BeamModel
from testbed.sched.plan import Outcome, Plan, Results
from testbed.sched.state import SchedulerState

NOTHING = Results()


class Outputs:
    """The requests that are being served, and when each decoding group ends.

    lengths: the true output lengths in tokens by request id, which oracles were built with. An
    entry of the heap counts while `_end_step` says the same of its request: a group
    that was preempted has left its entry behind.
    """

    def __init__(
        self, state: SchedulerState, beams: BeamModel, lengths: dict[int, int] | None = None
    ) -> None:
        self.requests: dict[int, Request] = {}
        self.lengths: dict[int, int] = {} if lengths is None else lengths
        self._state = state
        self._beams = beams
        self._end_step: dict[int, int] = {}
        self._ends: list[tuple[int, int]] = []

    def arrived(self, request: Request) -> None:
        self.requests[request.request_id] = request
        self.lengths[request.request_id] = request.output_len

    def removed(self, request_id: int) -> Request:
        del self.lengths[request_id]
        return self.requests.pop(request_id)

    def steps_to_end(self) -> int:
        """Steps after which the next group of the batch has its whole output. The batch is not
        empty.
        """
        ends, end_step = self._ends, self._end_step
        while end_step.get(ends[0][1]) != ends[0][0]:
            heapq.heappop(ends)
        return ends[0][0] - self._state.batch.steps

    def results(self, plan: Plan, steps: int) -> Results:
        """What the plan's iterations bring; called before they are committed."""
        for group in plan.preempted:
            self._end_step.pop(group.request.request_id, None)
        state = self._state
        ended: list[int] = []
        if plan.decode_seqs and self._ends and self._ends[0][0] <= state.batch.steps + steps:
            ended = self._pop_ended(state.batch.steps + steps)
        if not (plan.chunks or plan.swapped_in or state.beams):
            return record(Results, (tuple(ended), {})) if ended else NOTHING
        prefilled, stepping = [chunk.group for chunk in plan.chunks if chunk.last], plan.stepping
        for group in prefilled + stepping:
            if group.num_generated + 1 == self.lengths[group.request.request_id]:
                ended.append(group.request.request_id)
        if not (state.beams or stepping):
            return record(Results, (tuple(ended), {})) if ended else NOTHING
        searching = [group for group in stepping if group.request.beam]
        if plan.decode_seqs:
            searching = [*state.beams.values(), *searching]
        parents, requests = self._beams.parents, self.requests
        ids = [(group.request.request_id, group.num_generated + steps) for group in searching]
        return Results(
            tuple(ended), {one: parents(requests[one], num_generated) for one, num_generated in ids}
        )

    def follow(self, plan: Plan, outcome: Outcome) -> None:
        """The plan was committed: note who decodes from now on."""
        for group in (*outcome.first_tokens, *plan.swapped_in):
            if group.status is SequenceStatus.RUNNING:
                request_id = group.request.request_id
                step = self._state.batch.steps + self.lengths[request_id] - group.num_generated
                self._end_step[request_id] = step
                heapq.heappush(self._ends, (step, request_id))

    def _pop_ended(self, step: int) -> list[int]:
        ends = self._ends
        ended: list[int] = []
        while ends and ends[0][0] <= step:
            end, request_id = heapq.heappop(ends)
            if self._end_step.get(request_id) == end:
                del self._end_step[request_id]
                ended.append(request_id)
        return ended
