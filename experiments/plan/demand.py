"""The demand of a run's requests on the engines: lengths and times, as columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from testbed.core.request import PS, Rows
from testbed.engine.arrivals import AnswerDrivenWorkload
from testbed.run.config import RunConfig
from testbed.run.workload import make_workload

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Demand:
    """Prompt and output tokens of each request, and the time of its arrival in seconds.

    own_len: tokens of each prompt that no cache has before they are computed for this request.
    arrival_s: None if requests wait for answers. has_one_sequence: whether every request has a
    single one.
    """

    prompt_len: Numbers
    own_len: Numbers
    output_len: Numbers
    arrival_s: Numbers | None
    has_one_sequence: bool

    def __len__(self) -> int:
        return len(self.prompt_len)

    @property
    def final_len(self) -> Numbers:
        """Tokens of each request when it is answered."""
        return self.prompt_len + self.output_len


def demand_of(config: RunConfig) -> Demand:
    """The requests of the run of this config."""
    workload = make_workload(config)
    rows = workload.rows
    waits = rows.turns is not None or isinstance(workload, AnswerDrivenWorkload)
    return Demand(
        prompt_len=rows.prompt_len.astype(float),
        own_len=own_len(rows),
        output_len=rows.output_len.astype(float),
        arrival_s=None if waits else workload.arrival_ps / PS,
        has_one_sequence=not workload.has_samples,
    )


def own_len(rows: Rows) -> Numbers:
    """Tokens of each prompt behind those with which any other prompt begins, and behind a
    registered prefix; at least one, since no cache has what comes next.

    A cache finds beginnings of prompts alone: generated tokens only for their own request.
    """
    shared = np.full(len(rows), float(rows.registered_prefix))
    if rows.prompt_ids is not None:
        shared += rows.tokens_per_id * _num_shared_ids(rows.prompt_ids)
    return np.asarray(np.maximum(rows.prompt_len - shared, 1.0))


def _num_shared_ids(prompts: Sequence[tuple[int, ...]]) -> Numbers:
    """With how many ids of each prompt another one begins: one next to it in sorted order."""
    order = sorted(range(len(prompts)), key=lambda row: prompts[row])
    longest = np.zeros(len(prompts))
    for before, after in pairwise(order):
        num_shared = _num_equal(prompts[before], prompts[after])
        for row in (before, after):
            longest[row] = max(longest[row], num_shared)
    return longest


def _num_equal(ids: tuple[int, ...], others: tuple[int, ...]) -> int:
    """Ids with which both begin."""
    shorter = min(len(ids), len(others))
    return next((place for place in range(shorter) if ids[place] != others[place]), shorter)
