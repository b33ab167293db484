"""`testbed.simulate`: one run, from names or objects to data frames."""

from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from typing import TYPE_CHECKING, Any

from rich.console import Console

from experiments.front_door.options import asked, made
from experiments.runs.point import run
from experiments.runs.run_tables import requests, spans
from experiments.runs.summary_table import summary_table
from testbed.sim.recorder import Recorder

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

WIDTH = 120


@dataclass(frozen=True)
class Result:
    """What a run gave.

    summary: what summary.json of a run folder holds (its units: COLUMNS.md of any run folder). num_slots: the KV pool.
    """

    summary: dict[str, Any]
    num_slots: int
    recorder: Recorder

    @cached_property
    def requests(self) -> "pd.DataFrame":
        """One row a request, in order of arrival: times and latencies in s, lengths in tokens."""
        return requests(self.recorder)

    @cached_property
    def iterations(self) -> "pd.DataFrame":
        """One row a span of identical iterations: times in s, memory in slots as means over the span."""
        return spans(self.recorder)

    def plot(self) -> "Figure":
        """Memory over time by kind, batch over time, and how many requests were answered within which latency."""
        from experiments.runs.plots import draw_together

        return draw_together(self.requests, self.iterations, self.num_slots)

    def __repr__(self) -> str:
        """The summary as `testbed run` prints it."""
        console = Console(file=StringIO(), width=WIDTH)
        console.print(summary_table(self.summary))
        return str(console.file.getvalue())  # type: ignore[attr-defined]


def simulate(
    *overrides: str,
    policy: Any = None,
    trace: Any = None,
    rate: float | None = None,
    duration_s: float | None = None,
    **options: Any,
) -> Result:
    """Simulate one run; nothing is written. What is not given is as `testbed run` has it.

    policy: a name of `testbed list policy`, a MemoryPolicy class (or a function of the PoolSpec), or a new policy.
    trace: a name, a list of `testbed.core.request.Request` with their own times (ps), or a data frame with prompt_len
    and output_len in tokens; its column arrival_s (s) is played back where no rate, duration or arrivals are given.
    rate: requests/s. duration_s: seconds in which requests arrive.

    Further options are the groups of the command line (model, server, gpu, scheduler, preemption, cost, arrivals,
    beams, system, protocol, eviction), each a name or an object of its kind, and its values: seed, num_seqs (sequences
    a request), beam, max_len (tokens), swap_space_gib, window_s=(from, to), slo={"ttft_s": 1, "tpot_s": 0.1}, and any
    other by its key, as in **{"policy.block_size": 32}. `overrides` are words of the command line.

    Raises InputError, in one line, for what makes no sense.
    """
    config, objects = asked(
        overrides, {"policy": policy, "trace": trace, "rate": rate, "duration_s": duration_s, **options}
    )
    setup = made(config, objects)
    result = run(setup)
    return Result(result.summary, setup.pool.num_slots, result.recorder)
