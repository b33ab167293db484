"""Requests: one row of a trace, immutable; and a workload, the columns of many."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.core.errors import InputError

if TYPE_CHECKING:
    from testbed.core.sessions import Turns

PS = 10**12
Column = NDArray[np.int64]


class Incoming(NamedTuple):
    """What is known of a request when it comes in: everything but how long its output will be.

    It asks for num_seqs sequences, which are a beam or parallel samples. prompt_ids names the prompt's content, one id
    for each tokens_per_id tokens (1: token ids; 512: the hash ids of Mooncake traces); None means content that nobody
    else has. prefix is the length of the leading part of the prompt that the provider has registered, 0 for none.
    """

    request_id: int
    arrival_ps: int
    prompt_len: int
    num_seqs: int = 1
    beam: bool = False
    prefix: int = 0
    prompt_ids: tuple[int, ...] | None = None
    tokens_per_id: int = 1


class Request(NamedTuple):
    """One row of a trace: what is known when it comes in, and output_len, the true output tokens of each sequence.

    Only an engine holds requests; schedulers and policies see them as `incoming`.
    """

    request_id: int
    arrival_ps: int
    prompt_len: int
    output_len: int
    num_seqs: int = 1
    beam: bool = False
    prefix: int = 0
    prompt_ids: tuple[int, ...] | None = None
    tokens_per_id: int = 1

    @property
    def incoming(self) -> Incoming:
        """What everybody may know of it."""
        r = self
        return Incoming(
            r.request_id, r.arrival_ps, r.prompt_len, r.num_seqs, r.beam, r.prefix, r.prompt_ids, r.tokens_per_id
        )

    @property
    def final_len(self) -> int:
        """Tokens of one sequence when it has finished."""
        return self.prompt_len + self.output_len


@dataclass(frozen=True, slots=True)
class Rows:
    """Untimed rows of a trace, as columns of equal length; what every trace reader returns.

    arrival_s is the trace's own time stamps in seconds from the first request, or None where it has none. turns says
    which rows wait for the answers to others, where the trace knows; `take` and `at_most` leave that behind.
    """

    prompt_len: Column
    output_len: Column
    arrival_s: NDArray[np.float64] | None = None
    prompt_ids: Sequence[tuple[int, ...]] | None = None
    tokens_per_id: int = 1
    prefix: int = 0
    turns: "Turns | None" = None

    def __post_init__(self) -> None:
        for name, column in (("prompt_len", self.prompt_len), ("output_len", self.output_len)):
            if len(column) and int(column.min()) < 1:
                row = int(np.argmax(column < 1))
                raise InputError(f"row {row}: {name} is {column[row]}; every length must be at least 1")

    def __len__(self) -> int:
        return len(self.prompt_len)

    def prompts(self) -> Iterator[tuple[tuple[int, ...], int, int]]:
        """The content ids, tokens per id and length of every prompt."""
        if self.prompt_ids is None:
            raise InputError("the trace does not say what its prompts contain; a prefix cache needs one that does")
        for ids, prompt_len in zip(self.prompt_ids, self.prompt_len.tolist(), strict=True):
            yield ids, self.tokens_per_id, prompt_len

    def take(self, index: NDArray[np.int64]) -> "Rows":
        """The rows at `index`, in that order."""
        arrival_s = None if self.arrival_s is None else self.arrival_s[index]
        prompt_ids = None if self.prompt_ids is None else [self.prompt_ids[i] for i in index]
        prompt_len, output_len = self.prompt_len[index], self.output_len[index]
        return Rows(prompt_len, output_len, arrival_s, prompt_ids, self.tokens_per_id, self.prefix)

    def at_most(self, max_len: int) -> "Rows":
        """The rows whose prompt and output are together shorter than max_len tokens (the artifact's filter)."""
        return self.take(np.flatnonzero(self.prompt_len + self.output_len < max_len))


@dataclass(frozen=True, slots=True)
class Workload:
    """Timed rows: request i arrives at arrival_ps[i], in order of arrival, and asks for num_seqs sequences."""

    rows: Rows
    arrival_ps: Column
    num_seqs: int = 1
    beam: bool = False

    def __len__(self) -> int:
        return len(self.arrival_ps)

    def __iter__(self) -> Iterator[Request]:
        rows = self.rows
        columns = zip(self.arrival_ps.tolist(), rows.prompt_len.tolist(), rows.output_len.tolist(), strict=True)
        for i, (arrival_ps, prompt_len, output_len) in enumerate(columns):
            ids = None if rows.prompt_ids is None else rows.prompt_ids[i]
            yield Request(
                i, arrival_ps, prompt_len, output_len, self.num_seqs, self.beam, rows.prefix, ids, rows.tokens_per_id
            )
