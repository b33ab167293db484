"""The gaps between the output tokens of each request (inter-token latency), exact though no token's
time is recorded.

All requests of a batch take a step together, so the times of steps, from the spans of the recorder,
and the steps at which each request came and went give every gap.
"""

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.engine.gap_runs import GapRuns, all_runs, single_gaps
from testbed.engine.packed_rows import PackedRows

Counts = NDArray[np.int64]


STEPS = ("decode_seqs", "start_ps", "duration_ps", "iterations", "growth_ps")


class TokenGaps(NamedTuple):
    """Gaps between tokens of one request, in ps.

    runs: all gaps. request_ids, longest_ps: the requests that have a gap, and the longest of each.
    """

    runs: GapRuns
    request_ids: Counts
    longest_ps: Counts

    def longest_of(self, request_ids: Counts) -> Counts:
        """The longest gap of each of these requests; -1 where it has none."""
        order = np.argsort(self.request_ids)
        with_gaps = self.request_ids[order]
        places = np.searchsorted(with_gaps, request_ids)
        has_gaps = places < len(with_gaps)
        has_gaps[has_gaps] = with_gaps[places[has_gaps]] == request_ids[has_gaps]
        longest = np.full(len(request_ids), -1, np.int64)
        longest[has_gaps] = self.longest_ps[order][places[has_gaps]]
        return longest


class TokenClock:
    """When each request got its latest token, told by the engine in order of time.

    A member takes every step of the batch. A request that was preempted is not a member, until it
    has a token again, or is back from the host.

    num_steps: steps that the batch has taken. step_ps: when the last of them ended.
    _single: gaps that end with a token that no step of the batch brought.
    """

    def __init__(self) -> None:
        self.num_steps = 0
        self.step_ps = 0
        self._members: dict[int, tuple[int, int]] = {}  # steps so far, and last token, when joining
        self._paused_ps: dict[int, int] = {}  # last tokens of those that are out of the batch
        self._stays = PackedRows("request_id", "first_step", "last_step", "before_ps")
        self._single = PackedRows("request_id", "gap_ps")

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
        for gap_ps in (now_ps - last_ps, *repeat(0, num_tokens - 1)):
            self._single.append((request_id, gap_ps))
        self.joined(request_id, now_ps)

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

    def gaps(self, spans: Mapping[str, NDArray[Any]]) -> TokenGaps:
        """All gaps so far; spans: the columns STEPS of the recorder's spans."""
        stays = self._stays.columns()
        unfinished = [
            (request_id, first_step, self.num_steps, last_ps)
            for request_id, (first_step, last_ps) in self._members.items()
            if self.num_steps > first_step
        ]
        rows = np.array(unfinished, np.int64).reshape(-1, 4).T
        columns = [np.concatenate(pair) for pair in zip(stays.values(), rows, strict=True)]
        steps = DecodeSteps(spans)
        return _gaps(steps, _by_first_step(columns), list(self._single.columns().values()))


class DecodeSteps:
    """The spans of a recorder in which the batch takes steps, whose iterations grow evenly.

    start_ps, end_ps: of each span. first_ps, growth_ps: its first iteration, and what each later
    one takes more. num: its steps; bounds: the steps before each, and all of them.
    """

    def __init__(self, spans: Mapping[str, NDArray[Any]]) -> None:
        decodes = spans["decode_seqs"] > 0
        self.start_ps, duration, self.num, self.growth_ps = (
            spans[name][decodes] for name in ("start_ps", "duration_ps", "iterations", "growth_ps")
        )
        pairs = self.num * (self.num - 1) // 2
        self.first_ps = (duration - self.growth_ps * pairs) // np.maximum(self.num, 1)
        self.end_ps = self.start_ps + self.num * self.first_ps + self.growth_ps * pairs
        self.bounds = np.concatenate([[0], np.cumsum(self.num)])

    def gaps(self) -> tuple[Counts, Counts]:
        """The gaps of a request that takes all steps: the longest within each span, 0 where it has
        one step, and from each span's last step to the next one's first.
        """
        last_ps = self.first_ps + self.growth_ps * (self.num - 1)
        first_end_ps = self.start_ps + self.first_ps
        return np.where(self.num > 1, last_ps, 0), first_end_ps[1:] - self.end_ps[:-1]


def together(parts: Sequence[TokenGaps]) -> TokenGaps:
    """The gaps of several engines. A request that was served by two has the longest of both."""
    runs, request_ids, longest_ps = zip(*parts, strict=True)
    ids, longest = _longest(np.concatenate(request_ids), np.concatenate(longest_ps))
    return TokenGaps(all_runs(runs), ids, longest)


def _by_first_step(columns: list[Counts]) -> list[Counts]:
    order = np.argsort(columns[1], kind="stable")
    return [column[order] for column in columns]


def _gaps(steps: DecodeSteps, stays: list[Counts], single: list[Counts]) -> TokenGaps:
    """A stay's first gap begins at the last token before it, each other one at the step before.

    stays: request, steps of the batch before and after it, last token before it; by the second. A
    request comes and goes between spans.
    """
    request_id, first_step, last_step, before_ps = stays
    begin, end = (np.searchsorted(steps.bounds, step) for step in (first_step, last_step))
    first_ps = (steps.start_ps + steps.first_ps)[begin] - before_ps
    within_ps, between_ps = steps.gaps()
    members, staying = (
        _num_within(begin, end, len(within_ps)),
        _num_within(begin, end - 1, len(between_ps)),
    )
    in_turn = np.empty(len(within_ps) + len(between_ps), np.int64)
    in_turn[::2], in_turn[1::2] = within_ps, between_ps
    in_turn = np.append(in_turn, 0)  # one more, so that every range has a start
    longest_ps = np.maximum(first_ps, _range_maxima(in_turn, 2 * begin, 2 * end - 1))
    ids, gap_ps = single
    several, stay = (members > 0) & (steps.num > 1), staying > 0
    inside = steps.first_ps + steps.growth_ps, steps.growth_ps, steps.num - 1, members
    first_and_single = np.concatenate([first_ps, gap_ps])
    runs = [
        GapRuns(*[column[several] for column in inside]),
        single_gaps(between_ps[stay], staying[stay]),
        single_gaps(first_and_single, np.ones(len(first_and_single), np.int64)),
    ]
    longest = np.concatenate([request_id, ids]), np.concatenate([longest_ps, gap_ps])
    return TokenGaps(all_runs(runs), *_longest(*longest))


def _num_within(starts: Counts, stops: Counts, length: int) -> Counts:
    """How many ranges [start, stop) contain each of the numbers below length."""
    changes = np.zeros(length + 1, np.int64)
    some = stops > starts
    np.add.at(changes, starts[some], 1)
    np.add.at(changes, stops[some], -1)
    return np.cumsum(changes[:-1])


def _range_maxima(values: Counts, starts: Counts, stops: Counts) -> Counts:
    """The largest of values[start:stop] for each pair in order of start; 0 where there is none."""
    if not len(starts):
        return np.zeros(0, np.int64)
    bounds = np.column_stack([starts, stops]).ravel()
    maxima = np.maximum.reduceat(values, bounds)[::2]
    return np.where(stops > starts, maxima, 0)


def _longest(request_ids: Counts, gaps_ps: Counts) -> tuple[Counts, Counts]:
    """The requests without repetition, and the longest gap of each."""
    ids, places = np.unique(request_ids, return_inverse=True)
    longest = np.zeros(len(ids), np.int64)
    np.maximum.at(longest, places, gaps_ps)
    return ids, longest
