"""The records of a run: requests and iteration spans as rows, exact totals, and columns in seconds
of them.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from operator import add
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.core.request import PS, Request, Rows
from testbed.core.sequence import SWAPPED, WAITING, SequenceGroup
from testbed.core.slots import Usage
from testbed.engine.audit import check_accounts, check_measures, check_whole_slots
from testbed.engine.executor import Flight
from testbed.engine.fragmentation import fragmented_slots, reserved_slots, rounding_slots
from testbed.engine.packed_rows import BATCH, Counts, PackedRows, packed
from testbed.engine.token_gaps import STEPS, TokenClock, TokenGaps
from testbed.engine.totals import (
    CHANGING,
    NO_CHANGE,
    Measures,
    SharedSlots,
    SpanAccount,
    SpanMemory,
    Totals,
    changes_of,
    summed_products,
)
from testbed.sched.plan import Plan, Results

Columns = dict[str, NDArray[Any]]

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
    "growth_ps",
)
SLOTS = Measures._fields[1:]
OWN = ("running", "internal", "copies")
PARTS = (len(SHAPE), len(OWN), len(Usage._fields), len(NO_CHANGE))  # of a row that is not settled
WIDTH = sum(PARTS)


class Snapshot(NamedTuple):
    """The totals at the first iteration boundary at or after a requested time."""

    time_ps: int
    totals: Totals


class SpanRows(PackedRows):
    """The rows of spans: it keeps the sums of slots over their iterations, and has their means."""

    def columns(self) -> Columns:
        return _means(super().columns())

    def columns_in_parts(self) -> Iterator[Columns]:
        return map(_means, super().columns_in_parts())


def _means(table: Columns) -> Columns:
    return table | {name: table[name] / table["iterations"] for name in SLOTS}


class Recorder:
    """Everything that a run leaves behind.

    requests: one row a request that has ended, in order of ending; a rejected one has times of
    NOT_YET and a reason in `rejections`; a cancelled one has no finish_ps, the output tokens that
    it has as output_len, and its time in `cancellations`. num_moved: requests that left unanswered
    for another engine, if they count. spans: one row a span of identical
    iterations, each of which takes growth_ps more than the one before, its slots as means over
    them. snapshots: the totals, by requested time. The spans,
    and the sums in `totals`, are brought up to date by `settle`, the counts in `totals` at once.
    `policy` names the memory policy in error messages.
    """

    def __init__(self) -> None:
        times, counts = (
            ("arrival_ps", "first_token_ps", "finish_ps"),
            ("num_seqs", "num_swaps", "num_recomputes", "hit_tokens"),
        )
        self.requests = PackedRows("request_id", *times, "prompt_len", "output_len", *counts)
        self.spans: PackedRows = SpanRows(*SHAPE, "running", *SLOTS)
        self.rejections: dict[int, str] = {}
        self.cancellations: dict[int, int] = {}
        self.totals = Totals()
        self.snapshots: dict[int, Snapshot] = {}
        self.end_ps = 0
        self.num_moved = 0
        self.policy = "the memory policy"
        self._first_ps: dict[int, int] = {}
        self._tokens = TokenClock()
        self._gaps: tuple[tuple[int, ...], TokenGaps] | None = None  # and what there was before
        self._pending: list[int] = []  # the numbers of spans that are not settled, PARTS for each
        self._shared: list[SharedSlots] = []  # in these spans

    def tokens(
        self,
        plan: Plan,
        steps: int,
        stepping: Collection[int],
        prefilled: list[SequenceGroup],
        results: Results,
        now_ps: int,
    ) -> None:
        """The last of the plan's `steps` iterations ended at now_ps. stepping: the swapped-in
        requests that took a step, prefilled: the groups whose prompt is complete.
        """
        clock = self._tokens
        if plan.decode_seqs:
            clock.stepped(steps, now_ps)
        for group in plan.swapped_in:
            request_id = group.request_id
            if request_id in stepping:
                clock.has_token(request_id, now_ps)
            else:
                clock.is_back(request_id)
        for request_id, num_accepted in results.accepted.items():
            clock.verified(request_id, 1 + num_accepted, now_ps)
        if prefilled:
            self.first_tokens(prefilled, now_ps)
        for request_id in results.ended:
            clock.left(request_id)

    def first_tokens(self, groups: list[SequenceGroup], now_ps: int) -> None:
        """Record the first output tokens, from now_ps on; after recompute that is nothing new."""
        for group in groups:
            request_id = group.request_id
            self._first_ps.setdefault(request_id, now_ps)
            self._tokens.has_token(request_id, now_ps)

    def token_gaps(self) -> TokenGaps:
        """The gaps between tokens, of all requests that have had more than one."""
        counts = (len(self.spans), *self._tokens.counts)
        if self._gaps is None or self._gaps[0] != counts:
            self._gaps = None
            self._gaps = counts, self._tokens.gaps(lambda: self.spans.in_parts(*STEPS))
        return self._gaps[1]

    def served(self, request: Request, group: SequenceGroup, now_ps: int) -> None:
        """The request, whose sequences are `group`, was answered at now_ps."""
        request_id, arrival_ps, prompt_len, output_len, num_seqs, _, prefix, ids = request[:8]
        times_ps = arrival_ps, self._first_ps.pop(request_id), now_ps
        preempted = group.num_swaps, group.num_recomputes
        found = group.num_cached if ids is not None or prefix > 0 else NOT_YET  # as `hits`
        lengths = prompt_len, output_len, num_seqs
        self.requests.append((request_id, *times_ps, *lengths, *preempted, found))
        self.totals.finished += 1
        self.totals.generated += output_len * num_seqs

    def rejected(self, request: Request, reason: str) -> None:
        self.rejections[request.request_id] = reason
        self.totals.rejected += 1
        times_ps = request.arrival_ps, NOT_YET, NOT_YET
        lengths = request.prompt_len, request.output_len, request.num_seqs
        self.requests.append((request.request_id, *times_ps, *lengths, 0, 0, NOT_YET))

    def cancelled(self, request: Request, group: SequenceGroup, now_ps: int) -> None:
        """The request was cancelled, and its group has left at now_ps."""
        request_id = request.request_id
        self._tokens.left(request_id)
        self.cancellations[request_id] = now_ps
        self.totals.cancelled += 1
        times_ps = request.arrival_ps, self._first_ps.pop(request_id, NOT_YET), NOT_YET
        lengths = request.prompt_len, group.num_generated, request.num_seqs
        preempted = group.num_swaps, group.num_recomputes
        self.requests.append((request_id, *times_ps, *lengths, *preempted, hits(request, group)))

    def moved_on(self, request: Request, now_ps: int) -> None:
        """The request leaves unanswered, for another engine, whose recorder has its row."""
        self._first_ps.pop(request.request_id, None)
        self._tokens.left(request.request_id)
        self.totals.arrived -= 1
        self.num_moved += 1

    def taken_over(self, request: Request, first_ps: int, now_ps: int) -> None:
        """The request comes from another engine, if it had its first token at first_ps."""
        self._first_ps[request.request_id] = first_ps
        self._tokens.joined(request.request_id, first_ps)
        self.totals.arrived += 1

    def span(
        self,
        start_ps: int,
        duration_ps: int,
        steps: int,
        plan: Plan,
        waiting: int,
        swapped: int,
        memory: SpanMemory,
        growth_ps: int = 0,
    ) -> None:
        """A plan was carried out `steps` times, with `waiting` requests waiting and `swapped`
        swapped out; each iteration took growth_ps more than the one before.
        """
        prefill = 0
        if plan.chunks:
            for group, _, new, _, _, _ in plan.chunks:
                prefill += new
                if group.num_recomputes:
                    self.totals.recomputed += new
        running, usage, internal, copies, growth, shared = memory
        self._pending += (
            *(start_ps, duration_ps, steps, plan.decode_seqs + len(plan.drafts), prefill),
            *(len(plan.preempted), waiting, swapped, growth_ps),
            *(running, internal, copies, *usage, *growth),
        )
        self._shared += shared
        if len(self._pending) == BATCH * WIDTH:
            self.settle()

    def fused_span(
        self,
        flight: Flight,
        memory: SpanAccount,
        ended: tuple[int, ...],
        done: Iterable[SequenceGroup],
    ) -> None:
        """`span` and `tokens` at once, for the iterations of a plan of the fused path. ended: the
        requests that have their whole output, done: the groups whose prompt is complete.
        """
        plan, steps, start_ps, end_ps = flight.plan, flight.steps, flight.start_ps, flight.end_ps
        clock, prefill, decodes = self._tokens, 0, plan.decode_seqs
        for group, _, new, _, _, _ in plan.chunks:
            prefill += new
            if group.num_recomputes:
                self.totals.recomputed += new
        waiting, swapped, growth_ps = flight.num_waiting, flight.num_swapped, flight.growth_ps
        running, usage, internal, copies, growth, shared = memory
        pending = self._pending
        pending += (start_ps, end_ps - start_ps, steps, decodes, prefill, 0, waiting, swapped)
        pending += (growth_ps, running, internal, copies)
        pending += usage
        pending += growth
        if shared:
            self._shared += shared
        if decodes:
            clock.num_steps += steps  # as `stepped`
            clock.step_ps = end_ps
        for group in done:
            request_id = group.request_id
            self._first_ps.setdefault(request_id, end_ps)
            clock.has_token(request_id, end_ps)
        for request_id in ended:
            clock.left(request_id)
        if len(pending) == BATCH * WIDTH:
            self.settle()

    def moved(self, plan: Plan) -> None:
        """A plan begins: count its copies and the groups that it has preempted, but for groups
        that have left since.
        """
        for group in plan.preempted:
            self.totals.swaps += group.status is SWAPPED
            self.totals.recomputes += group.status is WAITING
        self.totals.copies += sum([len(ops.copies) for ops in plan.ops])

    def paused(self, groups: list[SequenceGroup]) -> None:
        """These were preempted: the iterations that end from now on bring them no tokens."""
        for group in groups:
            self._tokens.paused(group.request_id)

    def settle(self) -> None:
        """Bring `spans` and the sums in `totals` up to date."""
        if not self._pending:
            return
        counts, own, used, grown = self._packed()
        durations_ps, steps = counts[1], counts[2]
        check_accounts(used, self.policy)
        firsts = _firsts(own, used)
        changes, changes_ps = changes_of(steps, durations_ps, counts[-1], grown)
        over_time = [summed_products(column, durations_ps) for column in firsts]
        for i, more in zip(CHANGING, changes_ps, strict=True):
            over_time[i] += more
        sums = np.array(firsts) * steps
        sums[CHANGING] += changes.astype(np.int64)
        check_measures(sums, self.policy)
        totals = self.totals
        totals.busy_ps += sum(durations_ps.tolist())
        totals.iterations += int(steps.sum())
        totals.per_iteration = Measures(*map(add, totals.per_iteration, sums.sum(axis=1).tolist()))
        totals.over_time = Measures(*map(add, totals.over_time, over_time))
        if self._shared:
            self._add_shared()
        self.spans.extend([*counts, sums[0] // steps, *sums[1:]])

    def _packed(self) -> list[Counts]:
        """The numbers of the pending spans, as columns, in PARTS; none is pending then."""
        numbers, self._pending = self._pending, []
        try:
            columns = packed(numbers, WIDTH)
        except TypeError:
            starts = range(sum(PARTS[:2]), len(numbers), WIDTH)  # of the accounts
            accounts = [Usage(*numbers[start : start + PARTS[2]]) for start in starts]
            check_whole_slots(accounts, self.policy)
            raise
        return np.split(columns, np.cumsum(PARTS[:-1]))

    def _add_shared(self) -> None:
        """Add what sharing has saved in the pending spans to the totals."""
        totals = self.totals  # a snapshot keeps the others
        totals.shared, totals.shared_ps = totals.shared.copy(), totals.shared_ps.copy()
        for held, saved, saved_ps in self._shared:
            totals.shared[held] += saved
            totals.shared_ps[held] += saved_ps
        self._shared.clear()

    def snapshot(self, requested_ps: int, now_ps: int) -> None:
        """Keep the totals as they stand now."""
        self.settle()
        self.snapshots[requested_ps] = Snapshot(now_ps, replace(self.totals))


def _firsts(own: Counts, used: Counts) -> list[Counts]:
    """The Measures of first iterations, by the columns OWN and those of Usage."""
    running, internal, copies = own
    _, live, held, allocated, cached, free, largest_free, saved, _ = used
    return [
        running,
        live,
        reserved_slots(held, live, internal),
        internal,
        saved + copies,
        cached,
        rounding_slots(allocated, held),
        fragmented_slots(free, cached, largest_free),
    ]


def hits(request: Request, group: SequenceGroup) -> int:
    """Prompt tokens that the cache had; NOT_YET if the trace does not name the content."""
    is_named = request.prompt_ids is not None or request.registered_prefix > 0
    return group.num_cached if is_named else NOT_YET


def request_columns(recorder: Recorder) -> Columns:
    """One row a request that has ended, in order of arrival, latencies in s; a rejected one has a
    reason and no times. If requests were cancelled, cancelled_s has the times.
    """
    rows = recorder.requests.columns()
    longest_s = longest_gaps_s(recorder, rows["request_id"])
    order = np.argsort(rows["request_id"], kind="stable")
    table = in_seconds({name: rows.pop(name)[order] for name in [*rows]})
    request_ids = table["request_id"].tolist()
    reasons = [recorder.rejections.get(request_id, "") for request_id in request_ids]
    table["rejected"] = np.array(reasons, dtype=object)
    hits = table["hit_tokens"]
    table["hit_tokens"] = hits if (hits >= 0).all() else np.where(hits < 0, np.nan, hits)
    if recorder.cancellations:
        cancelled = [recorder.cancellations.get(request_id, -PS) for request_id in request_ids]
        seconds = np.array(cancelled) / PS
        table["cancelled_s"] = np.where(seconds < 0, np.nan, seconds)
    arrival, first, finish = (table[name] for name in ("arrival_s", "first_token_s", "finish_s"))
    later = np.where(table["output_len"] > 1, table["output_len"] - 1, np.nan)
    return table | {
        "ttft_s": first - arrival,
        "tpot_s": (finish - first) / later,
        "itl_max_s": longest_s[order],
        "e2e_s": finish - arrival,
    }


def longest_gaps_s(recorder: Recorder, request_ids: Counts) -> NDArray[np.float64]:
    """The longest gap between two tokens of each request, in s; NaN if it has none."""
    longest_ps = recorder.token_gaps().longest_of(request_ids)
    return np.where(longest_ps < 0, np.nan, longest_ps / PS)


def with_identity(table: Columns, rows: Rows) -> Columns:
    """A table of requests with their session and their priority, if the trace has them."""
    identity = {"session": rows.sessions, "priority": rows.priority}
    return table | {
        name: column[table["request_id"]] for name, column in identity.items() if column is not None
    }


def span_columns(recorder: Recorder) -> Columns:
    """One row a span of identical iterations, in order of time; slots are means over its
    iterations.
    """
    return in_seconds(recorder.spans.columns())


def span_columns_in_parts(recorder: Recorder) -> Iterator[Columns]:
    """`span_columns`, some spans at a time."""
    return map(in_seconds, recorder.spans.columns_in_parts())


def in_seconds(columns: Mapping[str, NDArray[Any]]) -> Columns:
    """Columns that end in _ps become columns that end in _s; what has not happened becomes
    missing.
    """
    table = {}
    for name, column in columns.items():
        if name.endswith("_ps"):
            table[f"{name[:-3]}_s"] = np.where(column != NOT_YET, column / PS, np.nan)
        else:
            table[name] = column
    return table
