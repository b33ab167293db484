"""Requests and iteration spans as rows, and exact totals; experiments make data frames of them."""

from typing import NamedTuple

from testbed.core.request import Request
from testbed.core.sequence import SequenceGroup
from testbed.sched.plan import Plan
from testbed.sim.rows import BATCH, PackedRows
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
    The sums in `totals` are brought up to date by `settle`, its counts at once.
    """

    def __init__(self) -> None:
        times, counts = ("arrival_ps", "first_token_ps", "finish_ps"), ("num_seqs", "num_swaps", "num_recomputes")
        self.requests = PackedRows("request_id", *times, "prompt_len", "output_len", *counts)
        shape = ("decode_seqs", "prefill_tokens", "preempted", "waiting", "swapped", "running")
        slots = ("live", "reserved", "internal", "saved")
        self.spans = PackedRows("start_ps", "duration_ps", "iterations", *shape, *slots, floats=slots)
        self.rejections: dict[int, str] = {}
        self.totals = Totals()
        self.marks: dict[int, Mark] = {}
        self.end_ps = 0
        self._unsettled: list[SpanSums] = []

    def served(self, group: SequenceGroup, now_ps: int) -> None:
        """The request of `group` was answered at now_ps."""
        r = group.request
        lengths = r.prompt_len, r.output_len, r.num_seqs
        times = r.arrival_ps, group.first_ps, now_ps
        self.requests.append((r.request_id, *times, *lengths, group.num_swaps, group.num_recomputes))

    def rejected(self, request: Request, reason: str) -> None:
        """The request was turned away."""
        self.rejections[request.request_id] = reason
        self.totals.rejected += 1
        r = request
        times = r.arrival_ps, NOT_YET, NOT_YET
        self.requests.append((r.request_id, *times, r.prompt_len, r.output_len, r.num_seqs, 0, 0))

    def span(
        self, start_ps: int, duration_ps: int, steps: int, plan: Plan, queues: tuple[int, int], sums: SpanSums
    ) -> None:
        """A plan was carried out `steps` times, with so many requests waiting and swapped out."""
        prefill = sum([chunk.new for chunk in plan.chunks]) if plan.chunks else 0
        shape = (start_ps, duration_ps, steps, plan.decode_seqs, prefill, len(plan.preempted), *queues)
        running, live, reserved, internal, saved = sums[:5]
        self.spans.append((*shape, running // steps, live / steps, reserved / steps, internal / steps, saved / steps))
        self._unsettled.append(sums)
        if len(self._unsettled) == BATCH:
            self.settle()

    def settle(self) -> None:
        """Add what the latest spans saw to the totals."""
        if self._unsettled:
            self.totals.add(SpanSums(*map(sum, zip(*self._unsettled, strict=True))))
            self._unsettled.clear()

    def mark(self, asked_ps: int, now_ps: int) -> None:
        """Keep the totals as they stand now."""
        self.settle()
        self.marks[asked_ps] = Mark(now_ps, self.totals.copy())
