"""The gaps between the output tokens of each request (inter-token latency), exact though no token's
time is recorded.

All requests of a batch take a step together, so the times of steps, from the spans of the recorder,
and the steps at which each request came and went give every gap.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.engine.gap_runs import GapParts, GapRuns, single_gaps
from testbed.engine.packed_rows import PackedRows

Counts = NDArray[np.int64]
Columns = Mapping[str, NDArray[Any]]

STEPS = ("decode_seqs", "start_ps", "duration_ps", "iterations", "growth_ps")


class TokenGaps(NamedTuple):
    """Gaps between tokens of one request, in ps.

    runs: all gaps. request_ids, longest_ps: the requests that have a gap, and the longest of each.
    """

    runs: GapParts
    request_ids: Counts
    longest_ps: Counts

    def longest_of(self, request_ids: Counts) -> Counts:
        """The longest gap of each of these requests; -1 if it has none."""
        order = np.argsort(self.request_ids)
        with_gaps = self.request_ids[order]
        places = np.searchsorted(with_gaps, request_ids)
        has_gaps = places < len(with_gaps)
        has_gaps[has_gaps] = with_gaps[places[has_gaps]] == request_ids[has_gaps]
        longest = np.full(len(request_ids), -1, np.int64)
        longest[has_gaps] = self.longest_ps[order][places[has_gaps]]
        return longest


class TokenClock:
    """The time of each request's latest token, which the engine gives in order of time.

    A member takes every step of the batch. A request that was preempted is not a member, until it
    has a token again, or is back from the host.

    num_steps: steps that the batch has taken. step_ps: when the last of them ended.
    _single: gaps that end with a token that no step of the batch brought. _num_at_once: gaps of 0
    ps, behind such a token.
    """

    def __init__(self) -> None:
        self.num_steps = 0
        self.step_ps = 0
        self._members: dict[int, tuple[int, int]] = {}  # steps so far, and last token, when joining
        self._paused_ps: dict[int, int] = {}  # last tokens of those that are out of the batch
        self._stays = PackedRows("request_id", "first_step", "last_step", "before_ps")
        self._single = PackedRows("request_id", "gap_ps")
        self._num_at_once = 0

    def stepped(self, steps: int, now_ps: int) -> None:
        """Each member has `steps` more tokens, the last of them at now_ps."""
        self.num_steps += steps
        self.step_ps = now_ps

    def has_token(self, request_id: int, now_ps: int) -> None:
        """A token that no step of the batch brought; the request is a member from now on."""
        paused_ps = self._paused_ps.pop(request_id, None)
        if paused_ps is not None:
            self._single.append((request_id, now_ps - paused_ps))
        self._members[request_id] = self.num_steps, now_ps

    def verified(self, request_id: int, num_tokens: int, now_ps: int) -> None:
        """A member has num_tokens tokens at once, of an iteration with drafts, in which the batch
        takes no step.
        """
        if request_id not in self._members:  # it was cancelled meanwhile
            return
        _, last_ps = self._members[request_id]
        self._single.append((request_id, now_ps - last_ps))
        self._num_at_once += num_tokens - 1
        self._members[request_id] = self.num_steps, now_ps

    def joined(self, request_id: int, last_ps: int) -> None:
        """The request, whose last token came at last_ps, is a member from now on."""
        self._members[request_id] = self.num_steps, last_ps

    def is_back(self, request_id: int) -> None:
        """A paused request is a member again, and takes its next token with the batch."""
        last_ps = self._paused_ps.pop(request_id, None)
        if last_ps is not None:
            self.joined(request_id, last_ps)

    def paused(self, request_id: int) -> None:
        """The request was preempted. It need not be a member: its prompt may be under way."""
        member = self._members.pop(request_id, None)
        if member is not None:
            first_step, last_ps = member
            has_stepped = self.num_steps > first_step
            self._paused_ps[request_id] = self.step_ps if has_stepped else last_ps
            self._keep(request_id, first_step, last_ps)

    def left(self, request_id: int) -> None:
        """The request has its whole output, or was cancelled."""
        member = self._members.pop(request_id, None)
        self._paused_ps.pop(request_id, None)
        if member is not None and self.num_steps > member[0]:
            first_step, last_ps = member
            self._stays.append((request_id, first_step, self.num_steps, last_ps))

    def _keep(self, request_id: int, first_step: int, last_ps: int) -> None:
        if self.num_steps > first_step:
            self._stays.append((request_id, first_step, self.num_steps, last_ps))

    @property
    def counts(self) -> tuple[int, ...]:
        """Counts that grow with every token: the gaps are others only if one of these is."""
        return self.num_steps, len(self._stays), len(self._single), len(self._members)

    def gaps(self, spans: Callable[[], Iterable[Columns]]) -> TokenGaps:
        """All gaps so far. spans() gives the columns STEPS of the recorder's spans, in parts."""
        stays = self._stays.columns()
        unfinished = [
            (request_id, first_step, self.num_steps, last_ps)
            for request_id, (first_step, last_ps) in self._members.items()
            if self.num_steps > first_step
        ]
        rows = np.array(unfinished, np.int64).reshape(-1, 4).T
        columns = [
            np.concatenate([stays.pop(name), row]) for name, row in zip([*stays], rows, strict=True)
        ]
        single = [*self._single.columns().values()]
        gaps = _gaps(lambda: map(decoding, spans()), _by_first_step(columns), single)
        if not self._num_at_once:
            return gaps
        at_once = single_gaps(np.zeros(1, np.int64), np.array([self._num_at_once]))
        return gaps._replace(runs=GapParts([*gaps.runs, at_once]))


class DecodeSpans(NamedTuple):
    """Some spans in which the batch takes steps, whose iterations grow evenly.

    num: steps of each. first_ps, growth_ps: its first iteration, and what each later one takes
    more. first_end_ps, end_ps: when its first iteration ends, and its last.
    """

    num: Counts
    first_ps: Counts
    growth_ps: Counts
    first_end_ps: Counts
    end_ps: Counts

    def longest_ps(self) -> Counts:
        """The longest gap within each span of a request that takes all its steps; 0 if it has
        one step.
        """
        return np.where(self.num > 1, self.first_ps + self.growth_ps * (self.num - 1), 0)

    def runs(self, members: NDArray[np.int32]) -> GapRuns:
        """The gaps within spans. members: the requests that have those of each."""
        some = (members > 0) & (self.num > 1)
        inside = self.first_ps + self.growth_ps, self.growth_ps, self.num - 1, members.astype(int)
        return GapRuns(*[column[some] for column in inside])


def decoding(spans: Columns) -> DecodeSpans:
    """The spans with decodes, by the columns STEPS."""
    decodes = spans["decode_seqs"] > 0
    start_ps, duration_ps, num, growth_ps = (spans[name][decodes] for name in STEPS[1:])
    pairs = num * (num - 1) // 2
    first_ps = (duration_ps - growth_ps * pairs) // np.maximum(num, 1)
    end_ps = start_ps + num * first_ps + growth_ps * pairs
    return DecodeSpans(num, first_ps, growth_ps, start_ps + first_ps, end_ps)


class Steps:
    """All steps of the batch, in order.

    bounds: the steps before each span, and all of them. first_end_ps: when the first step of each
    span ends. longest_ps: of a request that takes all steps, the longest gap within each span, and
    behind it the gap to the next one's first step.
    """

    def __init__(self, parts: Iterable[DecodeSpans]) -> None:
        bounds, first_ends, longest = [np.zeros(1, np.int64)], list[Counts](), list[Counts]()
        num_steps, end_ps = 0, np.zeros(1, np.int64)  # up to the span before, and its end
        for some in parts:
            bounds.append(num_steps + np.cumsum(some.num))
            num_steps += int(some.num.sum())
            first_ends.append(some.first_end_ps)
            ends_ps = np.concatenate([end_ps, some.end_ps])
            before_and_within = np.empty(2 * len(some.num), np.int64)
            before_and_within[::2] = some.first_end_ps - ends_ps[:-1]
            before_and_within[1::2] = some.longest_ps()
            longest.append(before_and_within)
            end_ps = ends_ps[-1:]
        self.bounds = _joined(bounds)
        self.first_end_ps = _joined(first_ends)
        self.longest_ps = _joined([*longest, np.zeros(1, np.int64)])[1:]


def _joined(parts: list[Counts]) -> Counts:
    """The parts in one, which the list no longer keeps."""
    column = np.concatenate(parts)
    parts.clear()
    return column


def together(parts: Sequence[TokenGaps]) -> TokenGaps:
    """The gaps of several engines. A request that was served by two has the longest of both."""
    runs, request_ids, longest_ps = zip(*parts, strict=True)
    ids, longest = _longest(np.concatenate(request_ids), np.concatenate(longest_ps))
    return TokenGaps(GapParts(chain.from_iterable(runs)), ids, longest)


def _by_first_step(columns: list[Counts]) -> list[Counts]:
    order = np.argsort(columns[1], kind="stable")
    return [columns.pop(0)[order] for _ in range(len(columns))]


def _gaps(
    spans: Callable[[], Iterable[DecodeSpans]], stays: list[Counts], single: list[Counts]
) -> TokenGaps:
    """A stay's first gap begins at the last token before it, each other one at the step before.

    stays: request, steps of the batch before and after it, last token before it; by the second. A
    request comes and goes between spans. The spans are read twice, in parts, because a run may have
    more of them than memory is to hold.
    """
    request_id, first_step, last_step, before_ps = stays
    steps, (ids, gap_ps) = Steps(spans()), single
    begin, end = (np.searchsorted(steps.bounds, step) for step in (first_step, last_step))
    first_ps = steps.first_end_ps[begin] - before_ps
    longest_ps = np.maximum(first_ps, _range_maxima(steps.longest_ps, 2 * begin, 2 * end - 1))
    between_ps = steps.longest_ps[1::2].copy()
    del steps
    one_by_one = np.concatenate([first_ps, gap_ps])
    single_runs = single_gaps(one_by_one, np.ones_like(one_by_one))
    runs = GapParts(chain(_runs(spans(), begin, end, between_ps), [single_runs]))
    longest = np.concatenate([request_id, ids]), np.concatenate([longest_ps, gap_ps])
    return TokenGaps(runs, *_longest(*longest))


def _runs(
    parts: Iterable[DecodeSpans], begin: Counts, end: Counts, between_ps: Counts
) -> Iterator[GapRuns]:
    """The gaps within spans and between them, of the stays from each span `begin` up to `end`."""
    members = _num_within(begin, end, len(between_ps))
    staying = _num_within(begin, end - 1, len(between_ps))
    start = 0
    for some in parts:
        here = slice(start, start + len(some.num))
        start = here.stop
        several = staying[here] > 0
        yield some.runs(members[here]).flat_ones_merged()
        yield single_gaps(between_ps[here][several], staying[here][several].astype(int))


def _num_within(starts: Counts, stops: Counts, length: int) -> NDArray[np.int32]:
    """The number of ranges [start, stop) that contain each of the numbers below length."""
    changes = np.zeros(length + 1, np.int32)
    some = stops > starts
    np.add.at(changes, starts[some], 1)
    np.add.at(changes, stops[some], -1)
    return np.cumsum(changes[:-1], dtype=np.int32)


def _range_maxima(values: Counts, starts: Counts, stops: Counts) -> Counts:
    """The largest of values[start:stop] for each pair in order of start; 0 if there is none."""
    bounds = np.column_stack([starts, stops]).ravel()
    maxima = np.maximum.reduceat(values, bounds)[::2]
    return np.where(stops > starts, maxima, 0)


def _longest(request_ids: Counts, gaps_ps: Counts) -> tuple[Counts, Counts]:
    """The requests without repetition, and the longest gap of each."""
    ids, places = np.unique(request_ids, return_inverse=True)
    longest = np.zeros(len(ids), np.int64)
    np.maximum.at(longest, places, gaps_ps)
    return ids, longest
