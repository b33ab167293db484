"""Digests of all that a policy answers or a run records, for golden rows: another one says that
something has changed, and the plain counts beside it hint at what.
"""

from dataclasses import asdict
from hashlib import blake2b

import numpy as np

from testbed.engine.recorder import Recorder, request_columns, span_columns
from testbed.run.metrics import Slo, filling_s, summarize

NUM_BYTES = 6
SLO = Slo(ttft_s=0.05, tpot_s=0.01, itl_s=0.02, e2e_s=1.0)


def digest_of(*values):
    """Of the values as Python prints them, so of values that equal ones print alike."""
    return blake2b(repr(values).encode(), digest_size=NUM_BYTES).hexdigest()


def recorded(recorder):
    """All that a recorder has of a run, as it counts and as a table shows it."""
    gaps = recorder.token_gaps()
    return (
        asdict(recorder.totals),
        recorder.end_ps,
        recorder.snapshots,
        recorder.rejections,
        recorder.cancellations,
        listed(recorder.requests.columns()),
        listed(recorder.spans.columns()),
        listed(request_columns(recorder)),
        listed(span_columns(recorder)),
        [column.tolist() for column in gaps.runs.listed()],
        gaps.request_ids.tolist(),
        gaps.longest_ps.tolist(),
    )


def listed(columns):
    """The kind of each column, of texts or numbers, and its values."""
    return {name: (column.dtype.kind, column.tolist()) for name, column in columns.items()}


class OpsRecorder(Recorder):
    """Also keeps the copies and moves of all plans, in order."""

    def __init__(self):
        super().__init__()
        self.ops = []

    def moved(self, plan):
        self.ops += plan.ops
        super().moved(plan)


def row_of_run(recorder, counters):
    """Plain counts of one run, and the digests of all of it."""
    totals, num_requests = recorder.totals, recorder.totals.arrived + 100
    summary = summarize(recorder, 400, None, SLO, np.arange(num_requests) % 5)
    return {
        "finished": totals.finished,
        "preempted": totals.swaps + totals.recomputes,
        "iterations": totals.iterations,
        "end_ps": recorder.end_ps,
        "recorded": digest_of(recorded(recorder), counters),
        "summary": digest_of(summary, filling_s(recorder.requests)),
        "ops": digest_of(recorder.ops),
    }
