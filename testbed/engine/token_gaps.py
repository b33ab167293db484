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

from testbed.engine.packed_rows import PackedRows

Counts = NDArray[np.int64]


class TokenGaps(NamedTuple):
    """Gaps between tokens of one request, in ps.

    gaps_ps, counts: lengths, and how often each occurs; a length may stand there several times.
    request_ids, longest_ps: the requests that have a gap, and the longest of each.
    """

    gaps_ps: Counts
    counts: Counts
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

    _single: gaps that end with a token that no step of the batch brought.
    """

    def __init__(self) -> None:
        self._num_steps = 0
        self._step_ps = 0  # when the last step ended
        self._members: dict[int, tuple[int, int]] = {}  # steps so far, and last token, when joining
        self._paused_ps: dict[int, int] = {}  # last tokens of those that are out of the batch
        self._stays = PackedRows("request_id", "first_step", "last_step", "before_ps")
        self._single = PackedRows("request_id", "gap_ps")

    def stepped(self, steps: int, now_ps: int) -> None:
        """Each member has `steps` more tokens, the last of them at now_ps."""
        self._num_steps += steps
        self._step_ps = now_ps

    def has_token(self, request_id: int, now_ps: int) -> None:
        """A token that no step of the batch brought; the request is a member from now on."""
        paused_ps = self._paused_ps.pop(request_id, None)
        if paused_ps is not None:
            self._single.append((request_id, now_ps - paused_ps))
        self._members[request_id] = self._num_steps, now_ps

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
        self._members[request_id] = self._num_steps, last_ps

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
            has_stepped = self._num_steps > first_step
            self._paused_ps[request_id] = self._step_ps if has_stepped else last_ps
            self._keep(request_id, first_step, last_ps)

    def left(self, request_id: int) -> None:
        """The request has its whole output, or nobody waits for it any more."""
        member = self._members.pop(request_id, None)
        self._paused_ps.pop(request_id, None)
        if member is not None and self._num_steps > member[0]:
            first_step, last_ps = member
            self._stays.append((request_id, first_step, self._num_steps, last_ps))

    def _keep(self, request_id: int, first_step: int, last_ps: int) -> None:
        if self._num_steps > first_step:
            self._stays.append((request_id, first_step, self._num_steps, last_ps))

    def gaps(self, spans: Mapping[str, NDArray[Any]]) -> TokenGaps:
        """All gaps so far; spans: the columns of the recorder's spans."""
        ends_ps = step_ends(spans)
        stays = self._stays.columns()
        unfinished = [
            (request_id, first_step, self._num_steps, last_ps)
            for request_id, (first_step, last_ps) in self._members.items()
            if self._num_steps > first_step
        ]
        rows = np.array(unfinished, np.int64).reshape(-1, 4).T
        columns = [np.concatenate(pair) for pair in zip(stays.values(), rows, strict=True)]
        return _gaps(ends_ps, _by_first_step(columns), list(self._single.columns().values()))


def step_ends(spans: Mapping[str, NDArray[Any]]) -> Counts:
    """When each step of the batch ended, in ps; the iterations of a span grow by growth_ps."""
    decodes = spans["decode_seqs"] > 0
    start, duration, steps, growth = (
        spans[name][decodes] for name in ("start_ps", "duration_ps", "iterations", "growth_ps")
    )
    first = (duration - growth * (steps * (steps - 1) // 2)) // np.maximum(steps, 1)
    number = np.arange(steps.sum()) - np.repeat(np.cumsum(steps) - steps, steps) + 1
    start, first, growth = (np.repeat(column, steps) for column in (start, first, growth))
    ends: Counts = start + number * first + growth * (number * (number - 1) // 2)
    return ends


def together(parts: Sequence[TokenGaps]) -> TokenGaps:
    """The gaps of several engines. A request that was served by two has the longest of both."""
    gaps_ps, counts, request_ids, longest_ps = map(np.concatenate, zip(*parts, strict=True))
    return TokenGaps(gaps_ps, counts, *_longest(request_ids, longest_ps))


def _by_first_step(columns: list[Counts]) -> list[Counts]:
    order = np.argsort(columns[1], kind="stable")
    return [column[order] for column in columns]


def _gaps(ends_ps: Counts, stays: list[Counts], single: list[Counts]) -> TokenGaps:
    """A stay's first gap begins at the last token before it, each other one at the step before.

    stays: request, steps of the batch before and after it, last token before it; by the second.
    """
    request_id, first_step, last_step, before_ps = stays
    first_ps = ends_ps[first_step] - before_ps
    between_ps = np.append(np.diff(ends_ps), 0)  # one more, so that every range has a start
    changes = np.zeros(len(between_ps) + 1, np.int64)
    np.add.at(changes, first_step, 1)
    np.add.at(changes, last_step - 1, -1)
    members = np.cumsum(changes[:-1])
    longest_ps = np.maximum(first_ps, _range_maxima(between_ps, first_step, last_step - 1))
    ids, gap_ps = single
    ones = np.ones(len(first_ps) + len(gap_ps), np.int64)
    used = members > 0
    return TokenGaps(
        np.concatenate([between_ps[used], first_ps, gap_ps]),
        np.concatenate([members[used], ones]),
        *_longest(np.concatenate([request_id, ids]), np.concatenate([longest_ps, gap_ps])),
    )


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
