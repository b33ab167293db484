"""Digests of all that a policy answers or a run records, for golden rows: another one says that
something has changed, and the plain counts beside it hint at what.
"""

from dataclasses import asdict
from hashlib import blake2b

NUM_BYTES = 6


def digest_of(*values):
    """Of the values as Python prints them, so of values that equal ones print alike."""
    return blake2b(repr(values).encode(), digest_size=NUM_BYTES).hexdigest()


def recorded(recorder):
    """All that a recorder has of a run: totals, requests, spans, gaps between tokens."""
    gaps = recorder.token_gaps()
    return (
        asdict(recorder.totals),
        recorder.end_ps,
        recorder.snapshots,
        recorder.rejections,
        recorder.cancellations,
        listed(recorder.requests),
        listed(recorder.spans),
        [column.tolist() for column in gaps.runs.listed()],
        gaps.request_ids.tolist(),
        gaps.longest_ps.tolist(),
    )


def listed(rows):
    """The columns of a table of a recorder, by name."""
    return {name: column.tolist() for name, column in rows.columns().items()}


def row_of_run(recorders, counters):
    """Plain counts of one run, by one engine or several, and the digest of all of it."""
    totals = [recorder.totals for recorder in recorders]
    return {
        "finished": sum(of_engine.finished for of_engine in totals),
        "preempted": sum(of_engine.swaps + of_engine.recomputes for of_engine in totals),
        "iterations": sum(of_engine.iterations for of_engine in totals),
        "end_ps": max(recorder.end_ps for recorder in recorders),
        "digest": digest_of(*map(recorded, recorders), counters),
    }
