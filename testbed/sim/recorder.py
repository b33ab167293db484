"""Requests and iteration spans as rows, and exact totals; experiments make data frames of them."""

from itertools import chain
from operator import mul
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from testbed.core.request import Request
from testbed.core.sequence import SequenceGroup
from testbed.core.slots import Usage
from testbed.sched.plan import Plan
from testbed.sim.audit import check_accounts, check_measures
from testbed.sim.rows import BATCH, PackedRows
from testbed.sim.sharing import with_shared
from testbed.sim.totals import CHANGING, Measures, Seen, Totals, plus

Counts: TypeAlias = NDArray[np.int64]

NOT_YET = -1
SHAPE = (
    "start_ps",
    "duration_ps",
    "iterations",
    "decode_seqs",
    "prefill_tokens",
    "preempted",
    "waiting",
    "swapped",
)
SLOTS = Measures._fields[1:]


class Mark(NamedTuple):
    """The totals at the first iteration boundary at or after an asked-for time."""

    time_ps: int
    totals: Totals


class Recorder:
    """Everything that a run leaves behind.

    requests: one row a request that has ended, in order of ending; a rejected one has times of NOT_YET and a reason in
    `rejections`. spans: one row a span of identical iterations, its slots as means over them. marks: by asked-for time.
    The spans, and the sums in `totals`, are brought up to date by `settle`, the counts in `totals` at once. `policy`
    names whose memory it is, for complaints.
    """

    def __init__(self) -> None:
        times, counts = ("arrival_ps", "first_token_ps", "finish_ps"), ("num_seqs", "num_swaps", "num_recomputes")
        self.requests = PackedRows("request_id", *times, "prompt_len", "output_len", *counts)
        self.spans = PackedRows(*SHAPE, "running", *SLOTS, floats=SLOTS)
        self.rejections: dict[int, str] = {}
        self.totals = Totals()
        self.marks: dict[int, Mark] = {}
        self.end_ps = 0
        self.policy = "the memory policy"
        self._first_ps: dict[int, int] = {}
        self._shapes: list[tuple[int, ...]] = []
        self._seen: list[Seen] = []

    def first_token(self, request_id: int, now_ps: int) -> None:
        """The request has output tokens from now_ps on; after recompute that is nothing new."""
        self._first_ps.setdefault(request_id, now_ps)

    def served(self, request: Request, group: SequenceGroup, now_ps: int) -> None:
        """The request, whose sequences are `group`, was answered at now_ps."""
        r = request
        lengths = r.prompt_len, r.output_len, r.num_seqs
        times = r.arrival_ps, self._first_ps.pop(r.request_id), now_ps
        self.requests.append((r.request_id, *times, *lengths, group.num_swaps, group.num_recomputes))

    def rejected(self, request: Request, reason: str) -> None:
        """The request was turned away."""
        self.rejections[request.request_id] = reason
        self.totals.rejected += 1
        r = request
        times = r.arrival_ps, NOT_YET, NOT_YET
        self.requests.append((r.request_id, *times, r.prompt_len, r.output_len, r.num_seqs, 0, 0))

    def span(
        self, start_ps: int, duration_ps: int, steps: int, plan: Plan, waiting: int, swapped: int, seen: Seen
    ) -> None:
        """A plan was carried out `steps` times, with so many requests waiting and swapped out."""
        prefill = sum([chunk.new for chunk in plan.chunks]) if plan.chunks else 0
        shape = start_ps, duration_ps, steps, plan.decode_seqs, prefill, len(plan.preempted), waiting, swapped
        shapes = self._shapes
        shapes.append(shape)
        self._seen.append(seen)
        if len(shapes) == BATCH:
            self.settle()

    def settle(self) -> None:
        """Bring `spans` and the sums in `totals` up to date."""
        if not self._seen:
            return
        shape = list(zip(*self._shapes, strict=True))
        running, accounts, internal, copies, changed, shared = zip(*self._seen, strict=True)
        columns = list(zip(*changed, strict=True))
        changes, changes_time = columns[: len(CHANGING)], columns[len(CHANGING) :]
        self._shapes.clear()
        self._seen.clear()
        firsts = self._firsts(accounts, *map(packed, (running, internal, copies)))
        # May be more than 64 bits hold; most runs have kinds of memory of which there never is any.
        over_time = [sum(map(mul, column.tolist(), shape[1])) if column.any() else 0 for column in firsts]
        for i, column in zip(CHANGING, changes_time, strict=True):
            over_time[i] += sum(column)
        counts = [*map(packed, shape)]
        steps = counts[2]
        sums = np.array(firsts) * steps
        sums[CHANGING] += np.array([*map(packed, changes)])
        check_measures(sums, self.policy)
        self.totals.busy_ps += sum(shape[1])
        self.totals.iterations += sum(shape[2])
        self.totals.per_iteration = plus(self.totals.per_iteration, Measures(*sums.sum(axis=1).tolist()))
        self.totals.over_time = plus(self.totals.over_time, Measures(*over_time))
        if any(shared):
            self.totals.sharing = with_shared(self.totals.sharing, chain.from_iterable(shared))
        self.spans.extend([*counts, sums[0] // steps, *(sums[1:] / steps)])

    def _firsts(self, accounts: tuple[Usage, ...], running: Counts, internal: Counts, copies: Counts) -> list[Counts]:
        """The Measures of the first iteration of each span, column by column."""
        used = [packed(column) for column in zip(*accounts, strict=True)]
        check_accounts(used, accounts, self.policy)
        _, live, held, allocated, cached, free, largest_free, saved = used
        reserved, rounding, scattered = held - live - internal, allocated - held, free + cached - largest_free
        return [running, live, reserved, internal, saved + copies, cached, rounding, scattered]

    def mark(self, asked_ps: int, now_ps: int) -> None:
        """Keep the totals as they stand now."""
        self.settle()
        self.marks[asked_ps] = Mark(now_ps, self.totals.copy())


def packed(column: tuple[int, ...]) -> Counts:
    """A column of numbers that 64 bits hold."""
    return np.fromiter(column, np.int64, len(column))
