"""The summary of a fleet: of all engines together, and of each."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from testbed.core.request import PS, Column
from testbed.engine.engine import Engine
from testbed.engine.recorder import Recorder
from testbed.fleet.fleet import Fleet, Replica
from testbed.fleet.handovers.split import SplitFleet
from testbed.run.metrics import FREE, KINDS, Slo, latencies, shares_of, spread, summarize
from testbed.run.summaries import HANDOVERS


def summarize_fleet(
    recorders: Sequence[Recorder],
    merged: Recorder,
    pool_slots: Sequence[int],
    window_ps: tuple[int, int] | None,
    slo: Slo,
    sessions: Column | None,
) -> dict[str, Any]:
    """The summary of one engine by `summarize`, of all together.

    An iteration is one of one engine, so means over iterations are those of an engine. Over time,
    memory is a share of all pools together from the start to the end of the run, and the batch is
    the sum of all.
    """
    if len(recorders) == 1:
        return summarize(merged, pool_slots[0], window_ps, slo, sessions)
    summary = summarize(merged, num_slots=1, slo=slo, sessions=sessions)
    pairs = zip(recorders, pool_slots, strict=True)
    slot_iterations = sum(recorder.totals.iterations * slots for recorder, slots in pairs)
    shares = shares_of(merged.totals, slot_iterations, sum(pool_slots) * merged.end_ps)
    for group, names in (("memory", KINDS), ("memory_free", FREE)):
        summary[group] = {name: shares[name] for name in names}
    return summary


def summary_of(replica: Replica, recorder: Recorder) -> dict[str, Any]:
    """A few numbers of one engine: its requests, times in seconds, and what its policy counted."""
    totals, times = recorder.totals, latencies(recorder.requests)
    return {
        "requests": {
            "arrived": totals.arrived,
            "finished": totals.finished,
            "rejected": totals.rejected,
            "cancelled": totals.cancelled,
            "moved": recorder.num_moved,
        },
        "ttft_s": spread(times["ttft_s"]),
        "e2e_s": spread(times["e2e_s"]),
        "iterations": totals.iterations,
        "busy_s": totals.busy_ps / PS,
        "preemptions": {"swap": totals.swaps, "recompute": totals.recomputes},
        "counters": counters_of(replica.engines),
    }


def handovers_of(fleet: Fleet) -> dict[str, Any]:
    """Seconds from the first token until the decode engine has the prompt, mean and p99, the mean
    of those on the link, and its bytes/s; nothing of a fleet without hand-overs.
    """
    if not isinstance(fleet, SplitFleet) or not fleet.times_ps:
        return {}
    seconds, on_link = (np.array(times) / PS for times in zip(*fleet.times_ps, strict=True))
    times = spread(seconds)
    return {
        HANDOVERS: {
            "mean_s": times["mean"],
            "p99_s": times["p99"],
            "link_s": fmean(on_link),
            "bandwidth": fleet.bandwidth,
        }
    }


def counters_of(engines: Sequence[Engine]) -> Mapping[str, float]:
    """The sums of what the engines' policies have counted."""
    counts = dict[str, float]()
    for engine in engines:
        for name, count in engine.scheduler.policy.counters().items():
            counts[name] = counts.get(name, 0) + count
    return counts
