"""The records of a run: the simulator's recorder, and for each iteration its measured times and its work."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

from testbed.core.request import PS, Request
from testbed.core.sequence import SequenceGroup, SequenceStatus
from testbed.cost.model import Work
from testbed.sched.plan import Plan
from testbed.sim.recorder import Recorder
from testbed.sim.totals import Seen


class Iteration(NamedTuple):
    """One iteration. Seconds: host_s of planning, launching, committing; waited_s for the GPU; gpu_s of GPU work.

    Host and GPU work in parallel, so the duration is host_s + waited_s, without gpu_s.
    """

    start_s: float
    duration_s: float
    host_s: float
    waited_s: float
    gpu_s: float
    work: Work


class SwapTime(NamedTuple):
    """One swap (way out, in) or transfer in the background (store, load).

    num_extents: runs of adjacent blocks below the device; seconds: from its first to its last work.
    """

    way: str
    num_extents: int
    num_bytes: int
    seconds: float


@dataclass(slots=True)
class Records:
    """All rows of a run; `outputs`: generated tokens of each finished request by sequence; `totals`: a beam's scores.

    Row i of `iterations` belongs to the recorder's span i, which is always one iteration.
    """

    recorder: Recorder = field(default_factory=Recorder)
    iterations: list[Iteration] = field(default_factory=list)
    outputs: dict[int, list[list[int]]] = field(default_factory=dict)
    totals: dict[int, list[float]] = field(default_factory=dict)
    beams: list[tuple[int, int, int, int]] = field(default_factory=list)
    swaps: list[SwapTime] = field(default_factory=list)

    @property
    def requests(self) -> list[Any]:
        """The requests that have ended, in order of ending, with the recorder's columns; times in picoseconds."""
        columns = self.recorder.requests.columns()
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        return [SimpleNamespace(**dict(zip(columns, row, strict=True))) for row in rows]

    @property
    def rejections(self) -> dict[int, str]:
        """Reasons of rejections, by request id."""
        return self.recorder.rejections

    def iterated(self, one: Iteration, plan: Plan, queues: tuple[int, int], seen: Seen) -> None:
        """Record an iteration; `queues` are the numbers of waiting and of swapped requests."""
        self.iterations.append(one)
        start_ps, end_ps = round(one.start_s * PS), round((one.start_s + one.duration_s) * PS)
        self.recorder.span(start_ps, end_ps - start_ps, 1, plan, *queues, seen)
        self.preempted(plan)
        self.recorder.totals.copies += sum(len(ops.copies) for ops in plan.ops)

    def preempted(self, plan: Plan) -> None:
        """Count the groups that a plan has preempted."""
        for group in plan.preempted:
            swapped = group.status is SequenceStatus.SWAPPED
            self.recorder.totals.swaps += swapped
            self.recorder.totals.recomputes += not swapped

    def served(
        self, request: Request, group: SequenceGroup, now_s: float, outputs: list[list[int]], totals: list[float]
    ) -> None:
        """Record a finished request."""
        self.recorder.totals.finished += 1
        self.recorder.totals.generated += request.output_len * request.num_seqs
        self.recorder.served(request, group, round(now_s * PS))
        self.outputs[request.request_id], self.totals[request.request_id] = outputs, totals
