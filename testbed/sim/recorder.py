"""Requests and iteration spans as rows, and exact totals; experiments make data frames of them."""

from typing import NamedTuple

from testbed.core.request import Request
from testbed.core.sequence import SequenceGroup
from testbed.sched.plan import Plan
from testbed.sim.rows import PackedRows
from testbed.sim.totals import SpanSums, Totals

NOT_YET = -1


class Mark(NamedTuple):
    """The totals at the first iteration boundary at or after an asked-for time."""

    time_ps: int
    totals: Totals


class Recorder:
    """Everything that a run leaves behind.

    requests: one row a request that has ended, in order of ending; a rejected one has times of NOT_YET and a reason in
    `rejections`. spans: one row a span of identical iterations, its slots as means over them. marks: by asked-for time.
    """

    def __init__(self) -> None:
        self.requests = PackedRows(
            request_id="q",
            arrival_ps="q",
            first_token_ps="q",
            finish_ps="q",
            prompt_len="q",
            output_len="q",
            num_seqs="q",
            num_swaps="q",
            num_recomputes="q",
        )
        self.spans = PackedRows(
            start_ps="q",
            duration_ps="q",
            iterations="q",
            decode_seqs="q",
            prefill_tokens="q",
            running="q",
            waiting="q",
            swapped="q",
            preempted="q",
            live="d",
            reserved="d",
            internal="d",
            saved="d",
        )
        self.rejections: dict[int, str] = {}
        self.totals = Totals()
        self.marks: dict[int, Mark] = {}
        self.end_ps = 0

    def served(self, group: SequenceGroup, now_ps: int) -> None:
        """The request of `group` was answered at now_ps."""
        r = group.request
        times = r.arrival_ps, group.first_ps, now_ps
        lengths = r.prompt_len, r.output_len, r.num_seqs
        self.requests.append(r.request_id, *times, *lengths, group.num_swaps, group.num_recomputes)

    def rejected(self, request: Request, reason: str) -> None:
        """The request was turned away."""
        self.rejections[request.request_id] = reason
        self.totals.rejected += 1
        r = request
        self.requests.append(r.request_id, r.arrival_ps, NOT_YET, NOT_YET, r.prompt_len, r.output_len, r.num_seqs, 0, 0)

    def span(
        self, start_ps: int, duration_ps: int, steps: int, plan: Plan, sums: SpanSums, queues: tuple[int, int]
    ) -> None:
        """A plan was carried out `steps` times, with so many requests waiting and swapped out."""
        prefill = sum(chunk.new for chunk in plan.chunks) if plan.chunks else 0
        shape = plan.decode_seqs, prefill, sums.running // steps, *queues, len(plan.preempted)
        means = sums.live / steps, sums.reserved / steps, sums.internal / steps, sums.saved / steps
        self.spans.append(start_ps, duration_ps, steps, *shape, *means)

    def mark(self, asked_ps: int, now_ps: int) -> None:
        """Keep the totals as they stand now."""
        self.marks[asked_ps] = Mark(now_ps, self.totals.copy())
