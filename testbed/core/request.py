"""Requests (immutable rows of a trace), and workloads (many requests)."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.core.errors import InputError
from testbed.core.slots import record
from testbed.core.units import PS as PS

Column = NDArray[np.int64]
Seconds = NDArray[np.float64]
ROWS_AT_ONCE = 1 << 12  # of a workload that become requests


class Incoming(NamedTuple):
    """A request as it is known on arrival: everything but its output length.

    Attributes:
        request_id: its number, in order of arrival.
        arrival_ps: picoseconds from the beginning.
        prompt_len: tokens.
        num_seqs: sequences that it generates, as a beam or as parallel samples.
        beam: whether they are a beam.
        registered_prefix: leading prompt tokens in a registered prefix; 0 for none.
        prompt_ids: the prompt's content, one id for each tokens_per_id tokens; None: content that
            no other request has.
        tokens_per_id: 1: token ids; 512: the hash ids of Mooncake traces.
        session: the conversation or job to which it belongs; None if it is unknown.
        priority: its class; a smaller number is more urgent, as in vLLM.
        max_new_tokens: output tokens of each sequence at most, which its client declares; None: no
            limit is declared.
        answer_id: names what it generates, so that a later prompt may contain it: of the tokens of
            prompt and answer together, those from k * tokens_per_id on have the id answer_id + k,
            unless they are all in the prompt. None: no prompt contains it.
    """

    request_id: int
    arrival_ps: int
    prompt_len: int
    num_seqs: int = 1
    beam: bool = False
    registered_prefix: int = 0
    prompt_ids: tuple[int, ...] | None = None
    tokens_per_id: int = 1
    session: int | None = None
    priority: int = 0
    max_new_tokens: int | None = None
    answer_id: int | None = None


class Request(NamedTuple):
    """One row of a trace: an Incoming, and output_len, the true output tokens of each sequence;
    only engines see it.
    """

    request_id: int
    arrival_ps: int
    prompt_len: int
    output_len: int
    num_seqs: int = 1
    beam: bool = False
    registered_prefix: int = 0
    prompt_ids: tuple[int, ...] | None = None
    tokens_per_id: int = 1
    session: int | None = None
    priority: int = 0
    max_new_tokens: int | None = None
    answer_id: int | None = None

    @property
    def incoming(self) -> Incoming:
        """The request without its output length, which schedulers and policies may read."""
        incoming: Incoming = record(Incoming, self[:3] + self[4:])
        return incoming

    @property
    def final_len(self) -> int:
        return self.prompt_len + self.output_len


@dataclass(frozen=True, slots=True)
class Turns:
    """The rows that each row waits for. A row waits only for earlier rows of the same session.

    Attributes:
        session: the session of each row, numbered from 0 in the order in which they start.
        after: the rows whose answers a row waits for.
        wait_s: seconds from the end of the last of them, or without any from the start of the
            session, until the row is sent.
        answer_s: the response time of a recorded server in seconds, 0 if it is unknown; it
            serves only to estimate the order of rows.
    """

    session: Column
    after: Sequence[tuple[int, ...]]
    wait_s: Seconds
    answer_s: Seconds

    def __post_init__(self) -> None:
        waits = np.isfinite(self.wait_s) & (self.wait_s >= 0)
        if not waits.all():
            row = int(np.argmin(waits))
            raise InputError(
                key=f"row {row}: wait_s",
                value=self.wait_s[row],
                problem="must be a finite time of at least 0 s",
            )
        for row, before in enumerate(self.after):
            session = self.session[row]
            if any(not 0 <= other < row or self.session[other] != session for other in before):
                raise InputError(
                    key=f"row {row}: after",
                    value=before,
                    problem="a row may only wait for earlier rows of its session",
                )

    def __len__(self) -> int:
        return len(self.after)

    @property
    def num_sessions(self) -> int:
        return int(self.session.max()) + 1 if len(self) else 0

    def take(self, order: Column) -> "Turns":
        """All rows in another order.

        Args:
            order: in which every row still follows the rows that it waits for.
        """
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        after = [tuple(place[list(self.after[row])].tolist()) for row in order.tolist()]
        return Turns(self.session[order], after, self.wait_s[order], self.answer_s[order])


@dataclass(frozen=True, slots=True)
class Rows:
    """Untimed rows of a trace, as columns of equal length; what every trace reader returns.

    Attributes:
        prompt_len: tokens.
        output_len: tokens of each sequence.
        arrival_s: time stamps in seconds from the first request; None if the trace has none.
        prompt_ids: the content of each prompt (see Incoming), or None.
        tokens_per_id: tokens that an id names.
        registered_prefix: leading tokens of every prompt that are a registered prefix.
        turns: which rows wait for the answers to others, if the trace records it; `take` and
            `at_most` drop it.
        num_seqs: sequences of each row; None if the run's config determines it.
        beam: whether these are a beam; None if the run's config determines it.
        session: of each row; None if the trace has none.
        priority: of each row; None if the trace has none.
        max_new_tokens: declared output tokens at most; None if no row declares any.
        answer_id: the first id of what each row generates (see Incoming), below 0 if no prompt
            contains it; None if the trace does not say which prompts contain answers.
        think_s: seconds between the answer to the session's row before and the row, which a closed
            loop heeds.
    """

    prompt_len: Column
    output_len: Column
    arrival_s: Seconds | None = None
    prompt_ids: Sequence[tuple[int, ...]] | None = None
    tokens_per_id: int = 1
    registered_prefix: int = 0
    turns: Turns | None = None
    num_seqs: Column | None = None
    beam: NDArray[np.bool_] | None = None
    session: Column | None = None
    priority: Column | None = None
    max_new_tokens: Column | None = None
    think_s: Seconds | None = None
    answer_id: Column | None = None

    def __post_init__(self) -> None:
        counts = {
            "prompt_len": self.prompt_len,
            "output_len": self.output_len,
            "num_seqs": self.num_seqs,
            "max_new_tokens": self.max_new_tokens,
        }
        for name, column in counts.items():
            if column is not None and len(column) and int(column.min()) < 1:
                row = int(np.argmax(column < 1))
                raise InputError(
                    key=f"row {row}: {name}", value=column[row], problem="must be at least 1"
                )
        if self.max_new_tokens is not None and (self.max_new_tokens < self.output_len).any():
            row = int(np.argmax(self.max_new_tokens < self.output_len))
            raise InputError(
                key=f"row {row}: max_new_tokens",
                value=self.max_new_tokens[row],
                problem=f"is less than its output of {self.output_len[row]} tokens",
            )

    def __len__(self) -> int:
        return len(self.prompt_len)

    @property
    def sessions(self) -> Column | None:
        """The session of each row, by the trace's turns or by its column."""
        return self.session if self.turns is None else self.closed_sessions

    @property
    def closed_sessions(self) -> Column | None:
        """The session of each row by its turns; None: rows do not wait for answers."""
        return None if self.turns is None else self.turns.session

    def prompts(self) -> Iterator[tuple[tuple[int, ...], int, int]]:
        """The content ids, tokens per id and length of every prompt."""
        if self.prompt_ids is None:
            raise InputError(
                key="the trace",
                problem="has no prompt content",
                remedy="choose a trace with prompt ids for a prefix cache",
            )
        for ids, prompt_len in zip(self.prompt_ids, self.prompt_len.tolist(), strict=True):
            yield ids, self.tokens_per_id, prompt_len

    def take(self, index: NDArray[np.int64]) -> "Rows":
        """Some rows.

        Args:
            index: their numbers, in the order wanted.
        """
        of_request = "prompt_len", "output_len", "arrival_s", "num_seqs", "beam"
        names = (*of_request, "session", "priority", "max_new_tokens", "think_s", "answer_id")
        chosen: dict[str, Any] = {
            name: None if (column := getattr(self, name)) is None else column[index]
            for name in names
        }
        prompt_ids = None if self.prompt_ids is None else [self.prompt_ids[i] for i in index]
        return replace(self, prompt_ids=prompt_ids, turns=None, **chosen)

    def at_most(self, max_len: int) -> "Rows":
        """The rows whose prompt and output sum to less than max_len tokens (the artifact's
        filter).

        Args:
            max_len: tokens.
        """
        return self.take(np.flatnonzero(self.prompt_len + self.output_len < max_len))


@dataclass(frozen=True, slots=True)
class Workload:
    """Timed rows in order of arrival; num_seqs and beam are the sampling of requests whose row has
    none. has_unread_times: the trace has times of its own, by which they do not arrive.
    """

    rows: Rows
    arrival_ps: Column
    num_seqs: int = 1
    beam: bool = False
    has_unread_times: bool = field(default=False, kw_only=True)

    def __len__(self) -> int:
        return len(self.arrival_ps)

    @property
    def has_beams(self) -> bool:
        """True if any request uses beam search."""
        return self.beam if self.rows.beam is None else bool(self.rows.beam.any())

    @property
    def has_samples(self) -> bool:
        """True if any request generates several sequences, as samples or as beams."""
        if self.rows.num_seqs is None:
            return self.num_seqs > 1
        return bool((self.rows.num_seqs > 1).any())

    @property
    def names_contents(self) -> bool:
        """True if it is known what any prompt contains, so that a cache can find it."""
        return self.rows.prompt_ids is not None or self.rows.registered_prefix > 0

    def optional_fields(self) -> tuple[str, ...]:
        """The columns that the requests have, of `session`, `priority` and `max_new_tokens`."""
        rows = self.rows
        columns = {
            "session": rows.sessions,
            "priority": rows.priority,
            "max_new_tokens": rows.max_new_tokens,
        }
        return tuple(name for name, column in columns.items() if column is not None)

    def __iter__(self) -> Iterator[Request]:
        for start in range(0, len(self.rows), ROWS_AT_ONCE):
            stop = min(start + ROWS_AT_ONCE, len(self.rows))
            for row in zip(range(start, stop), *self._columns(slice(start, stop)), strict=True):
                yield record(Request, row)

    def _columns(self, some: slice) -> Iterator[Iterable[Any]]:
        """The fields of some requests behind their ids, in the order of Request's."""
        rows, num = self.rows, some.stop - some.start

        def of(column: NDArray[Any] | None, value: object) -> Iterable[Any]:
            return repeat(value, num) if column is None else column[some].tolist()

        yield self.arrival_ps[some].tolist()
        yield rows.prompt_len[some].tolist()
        yield rows.output_len[some].tolist()
        yield of(rows.num_seqs, self.num_seqs)
        yield of(rows.beam, self.beam)
        yield repeat(rows.registered_prefix, num)
        yield repeat(None, num) if rows.prompt_ids is None else rows.prompt_ids[some]
        yield repeat(rows.tokens_per_id, num)
        yield of(rows.sessions, None)
        yield of(rows.priority, 0)
        yield of(rows.max_new_tokens, None)
        yield repeat(None, num) if rows.answer_id is None else known(rows.answer_id[some])


def known(ids: Column) -> list[int | None]:
    """The ids, of which those below 0 are none."""
    return [None if each < 0 else each for each in ids.tolist()]


def without_answers(requests: Iterable[Request]) -> list[Request]:
    """The requests, of which no prompt contains an answer: a model says something else."""
    return [request._replace(answer_id=None) for request in requests]
