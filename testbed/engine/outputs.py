"""The outputs to come: how long every output is, and which beams survive. The future, known to the
engine alone.
"""

import heapq
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from testbed.core.request import Request
from testbed.core.sequence import SequenceGroup
from testbed.core.slots import record
from testbed.sched.beam_search import Ahead, BeamModel, Replacement
from testbed.sched.plan import Outcome, Plan, Results
from testbed.sched.state import SchedulerState
from testbed.speculation.acceptance import Acceptance

NOTHING = Results()
NONE: Mapping[int, Any] = {}
# Of a beam request: the step at which its candidates change, its number, its id, the step at which
# they would have had no token, who survives, and the changes after it
Change: TypeAlias = tuple[int, int, int, int, tuple[Replacement, ...], Ahead]


class Outputs:
    """The requests that are being served, and when each decoding group ends.

    lengths: the true output lengths in tokens by request id, which oracles were built with.
    acceptance: how many drafts are accepted, if the scheduler plans any. An
    entry of a heap counts while `_end_step` or `_joined` says the same of its request: a
    group that was preempted has left its entries behind.
    """

    def __init__(
        self,
        state: SchedulerState,
        beams: BeamModel,
        lengths: dict[int, int] | None = None,
        acceptance: Acceptance | None = None,
    ) -> None:
        self.requests: dict[int, Request] = {}
        self.lengths: dict[int, int] = {} if lengths is None else lengths
        self._state = state
        self._beams = beams
        self._acceptance = acceptance
        self._end_step: dict[int, int] = {}
        self._ends: list[tuple[int, int]] = []
        self._joined: dict[int, int] = {}  # beam requests of the batch, numbered as they join
        self._changes: list[Change] = []
        self._num_joined = 0

    def arrived(self, request: Request) -> None:
        request_id = request.request_id
        self.requests[request_id] = request
        self.lengths[request_id] = request.output_len

    def removed(self, request_id: int) -> Request:
        del self.lengths[request_id]
        self._end_step.pop(request_id, None)
        self._joined.pop(request_id, None)
        return self.requests.pop(request_id)

    def steps_to_change(self) -> int:
        """Steps after which the next group of the batch has its whole output, or the
        candidates of a beam request change. The batch is not empty.
        """
        ends, end_step = self._ends, self._end_step
        while end_step.get(ends[0][1]) != ends[0][0]:
            heapq.heappop(ends)
        step = ends[0][0]
        if self._joined:
            changes, joined = self._changes, self._joined
            while changes and joined.get(changes[0][2]) != changes[0][1]:
                heapq.heappop(changes)
            if changes and changes[0][0] < step:
                step = changes[0][0]
        return step - self._state.batch.steps

    def preempted(self, plan: Plan) -> None:
        """The groups that a plan has preempted decode no more."""
        for group in plan.preempted:
            self._end_step.pop(group.request_id, None)
            self._joined.pop(group.request_id, None)

    def accepted(self, plan: Plan) -> dict[int, int]:
        """The accepted drafts of each request that has some in the plan, up to its whole output;
        called before it is committed or anticipated.
        """
        accepted: dict[int, int] = {}
        for draft in plan.drafts:
            group, _, num_drafts = draft
            if draft.is_over:
                continue
            request_id, num_generated = group.request_id, group.generated_offset
            drawn = 0
            if num_drafts:
                assert self._acceptance is not None, "a scheduler that drafts has one"
                drawn = self._acceptance.accepted(request_id, num_generated, num_drafts)
            accepted[request_id] = min(drawn, self.lengths[request_id] - num_generated - 1)
        return accepted

    def ended(self, plan: Plan, steps: int, accepted: Mapping[int, int] = NONE) -> tuple[int, ...]:
        """The requests that have their whole output when the plan's iterations have run, with the
        drafts in `accepted`, by request id; called before they are committed or anticipated.
        """
        state = self._state
        ended: list[int] = []
        if plan.decode_seqs and self._ends and self._ends[0][0] <= state.batch.steps + steps:
            ended = self._pop_ended(state.batch.steps + steps)
        for group, _, _, _, last, _ in plan.chunks:
            if last and group.generated_offset + 1 == self.lengths[group.request_id]:
                ended.append(group.request_id)  # in no batch yet
        if plan.swapped_in:
            for group in plan.stepping:
                if group.num_generated + 1 == self.lengths[group.request_id]:
                    ended.append(group.request_id)
        if plan.drafts:
            ended += self._ended_drafts(plan, accepted)
        return tuple(ended)

    def _ended_drafts(self, plan: Plan, accepted: Mapping[int, int]) -> Iterator[int]:
        """`ended` of the requests with drafts."""
        for draft in plan.drafts:
            request_id = draft.group.request_id
            num_generated = draft.group.generated_offset + 1 + accepted.get(request_id, 0)
            if num_generated == self.lengths.get(request_id) and not draft.is_over:
                yield request_id

    def decoded(self, steps: int) -> Results:
        """`results` of iterations that only decode, in the batch."""
        ends, step = self._ends, self._state.batch.steps + steps
        ended = tuple(self._pop_ended(step)) if ends and ends[0][0] <= step else ()
        parents = self._changed(step) if self._joined else NONE
        return record(Results, (ended, parents, NONE, NONE)) if ended or parents else NOTHING

    def end_with_next(self, group: SequenceGroup, num_tokens: int = 1) -> None:
        """The present iteration brings num_tokens tokens, the last one of each sequence of the
        group; called before it is committed.
        """
        request_id, output_len = group.request_id, group.num_generated + num_tokens
        self.lengths[request_id] = output_len
        self.requests[request_id] = self.requests[request_id]._replace(output_len=output_len)
        if request_id in self._end_step:
            self.decodes(group)

    def results(self, plan: Plan, steps: int) -> Results:
        """The results of the plan's iterations; called before they are committed."""
        if plan.drafts:
            accepted = self.accepted(plan)
            return Results(self.ended(plan, steps, accepted), {}, accepted)
        ended = self.ended(plan, steps)
        if not (self._state.beams or plan.swapped_in):
            return record(Results, (ended, NONE, NONE, NONE)) if ended else NOTHING
        return Results(ended, self._parents(plan, steps))

    def _parents(self, plan: Plan, steps: int) -> dict[int, tuple[Replacement, ...]]:
        """The candidates that survive, of each beam request whose candidates change in the last of
        the steps, in order of joining; of requests just swapped in behind them.
        """
        parents = self._changed(self._state.batch.steps + steps) if plan.decode_seqs else {}
        for group in plan.stepping if plan.swapped_in else ():
            if group.request.beam:
                request, num_generated = self.requests[group.request_id], group.num_generated
                parents[group.request_id] = self._beams.parents(request, num_generated + steps)
        return parents

    def _changed(self, step: int) -> dict[int, tuple[Replacement, ...]]:
        """The candidates that survive, of each beam request of the batch whose candidates change
        by this step of it, in order of joining.
        """
        parents: dict[int, tuple[Replacement, ...]] = {}
        changes, joined = self._changes, self._joined
        while changes and changes[0][0] <= step:
            _, number, request_id, began, chosen, ahead = heapq.heappop(changes)
            if joined.get(request_id) == number:
                parents[request_id] = chosen
                self._note_change(number, request_id, began, ahead)
        return parents

    def follow(self, plan: Plan, outcome: Outcome, ended: tuple[int, ...] = ()) -> None:
        """Note the sequences that decode from now on, after a plan was committed or anticipated."""
        groups = outcome.first_tokens
        for group in groups + plan.swapped_in if plan.swapped_in else groups:
            request_id = group.request_id
            if group.batch is not None and request_id not in ended:
                self.decodes(group)

    def decodes(self, group: SequenceGroup) -> None:
        """The group is in the batch from now on."""
        request_id = group.request_id
        step = self.lengths[request_id] - group.generated_offset
        if group.batch is None:
            step += self._state.batch.steps
        self._end_step[request_id] = step
        heapq.heappush(self._ends, (step, request_id))
        if request_id in self._state.beams and request_id not in self._joined:
            self._search(request_id, group.num_generated)

    def _search(self, request_id: int, num_generated: int) -> None:
        """A beam request, whose candidates have num_generated tokens each, joins the batch."""
        self._num_joined += 1
        self._joined[request_id] = self._num_joined
        ahead = self._beams.changes(self.requests[request_id], num_generated + 1)
        began = self._state.batch.steps - num_generated  # the step at which it had no token
        self._note_change(self._num_joined, request_id, began, ahead)

    def _note_change(self, number: int, request_id: int, began: int, ahead: Ahead) -> None:
        """The next change of a beam request's candidates."""
        for num_generated, chosen in ahead:
            if chosen:
                entry = began + num_generated, number, request_id, began, chosen, ahead
                heapq.heappush(self._changes, entry)
                return

    def _pop_ended(self, step: int) -> list[int]:
        ends = self._ends
        ended: list[int] = []
        while ends and ends[0][0] <= step:
            end, request_id = heapq.heappop(ends)
            if self._end_step.get(request_id) == end:
                del self._end_step[request_id]
                ended.append(request_id)
        return ended
