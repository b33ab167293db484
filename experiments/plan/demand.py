"""What a run's requests ask of the engines: lengths and times, as columns."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.config import RunConfig
from testbed.core.request import PS
from testbed.engine.arrivals import AnswerDrivenWorkload
from testbed.workload import make_workload

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Demand:
    """Prompt and output tokens of each request, and the time of its arrival in seconds.

    arrival_s: None where requests wait for answers. names_contents: whether a prompt may be found
    in a cache, as a whole or in part. has_one_sequence: whether every request has a single one.
    """

    prompt_len: Numbers
    output_len: Numbers
    arrival_s: Numbers | None
    names_contents: bool
    has_one_sequence: bool

    def __len__(self) -> int:
        return len(self.prompt_len)


def demand_of(config: RunConfig) -> Demand:
    """The requests of the run of this config."""
    workload = make_workload(config)
    rows = workload.rows
    waits = rows.turns is not None or isinstance(workload, AnswerDrivenWorkload)
    return Demand(
        rows.prompt_len.astype(float),
        rows.output_len.astype(float),
        None if waits else workload.arrival_ps / PS,
        workload.names_contents,
        rows.num_seqs is None and workload.num_seqs == 1,
    )
