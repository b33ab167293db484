"""Requests and iteration spans as columns; experiments make data frames of them."""

from array import array
from typing import NamedTuple

from testbed.core.request import Request
from testbed.core.sequence import SequenceGroup
from testbed.sched.plan import Plan
from testbed.sim.totals import SpanSums, Totals

NOT_YET = -1


class RequestLog:
    """One row a request that has ended: served, or rejected with a reason."""

    def __init__(self) -> None:
        self.request_id = array("q")
        self.arrival_ps = array("q")
        self.first_token_ps = array("q")
        self.finish_ps = array("q")
        self.prompt_len = array("q")
        self.output_len = array("q")
        self.num_seqs = array("q")
        self.num_swaps = array("q")
        self.num_recomputes = array("q")
        self.rejections: dict[int, str] = {}

    def served(self, group: SequenceGroup, now_ps: int) -> None:
        """The request of `group` was answered at now_ps."""
        self._row(group.request, group.first_ps, now_ps, group.num_swaps, group.num_recomputes)

    def rejected(self, request: Request, reason: str) -> None:
        """The request was turned away at arrival."""
        self.rejections[request.request_id] = reason
        self._row(request, NOT_YET, NOT_YET, 0, 0)

    def columns(self) -> dict[str, "array[int]"]:
        """The columns by name, in order of ending."""
        return {name: column for name, column in vars(self).items() if isinstance(column, array)}

    def _row(self, request: Request, first_ps: int, finish_ps: int, num_swaps: int, num_recomputes: int) -> None:
        self.request_id.append(request.request_id)
        self.arrival_ps.append(request.arrival_ps)
        self.first_token_ps.append(first_ps)
        self.finish_ps.append(finish_ps)
        self.prompt_len.append(request.prompt_len)
        self.output_len.append(request.output_len)
        self.num_seqs.append(request.num_seqs)
        self.num_swaps.append(num_swaps)
        self.num_recomputes.append(num_recomputes)


class SpanLog:
    """One row a span of identical iterations. Slots are means over its iterations."""

    def __init__(self) -> None:
        self.start_ps = array("q")
        self.duration_ps = array("q")
        self.iterations = array("q")
        self.decode_seqs = array("q")
        self.prefill_tokens = array("q")
        self.running = array("q")
        self.waiting = array("q")
        self.swapped = array("q")
        self.preempted = array("q")
        self.live = array("d")
        self.reserved = array("d")
        self.internal = array("d")

    def add(
        self, start_ps: int, duration_ps: int, steps: int, plan: Plan, sums: SpanSums, queues: tuple[int, int]
    ) -> None:
        """A plan was carried out `steps` times."""
        running, live, reserved, internal = sums.per_iteration
        self.start_ps.append(start_ps)
        self.duration_ps.append(duration_ps)
        self.iterations.append(steps)
        self.decode_seqs.append(plan.decode_seqs)
        self.prefill_tokens.append(sum(chunk.new for chunk in plan.chunks) if plan.chunks else 0)
        self.running.append(running // steps)
        self.waiting.append(queues[0])
        self.swapped.append(queues[1])
        self.preempted.append(len(plan.preempted))
        self.live.append(live / steps)
        self.reserved.append(reserved / steps)
        self.internal.append(internal / steps)

    def columns(self) -> dict[str, "array[int] | array[float]"]:
        """The columns by name, in order of time."""
        return dict(vars(self))


class Mark(NamedTuple):
    """The totals at the first iteration boundary at or after an asked-for time."""

    time_ps: int
    totals: Totals


class Recorder:
    """Everything that a run leaves behind; `marks` by the time that was asked for."""

    def __init__(self) -> None:
        self.requests = RequestLog()
        self.spans = SpanLog()
        self.totals = Totals()
        self.marks: dict[int, Mark] = {}
        self.end_ps = 0

    def mark(self, asked_ps: int, now_ps: int) -> None:
        """Keep the totals as they stand now."""
        self.marks[asked_ps] = Mark(now_ps, self.totals.copy())
