"""The workload of a configured run: rows of the trace at the times of the arrival process, neither
taken on trust.
"""

import reprlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from testbed.core.errors import InputError
from testbed.core.request import PS, Column, Rows, Workload
from testbed.core.units import LAST_S
from testbed.engine.arrivals import AnswerDriven, AnswerDrivenWorkload
from testbed.run.config import MixShare, RunConfig, WorkloadConfig, declared_factor, parse_mix
from testbed.traces.reader import FileTrace, stream


def make_workload(config: RunConfig) -> Workload:
    """Timed rows; the trace and the arrival process draw from separate streams of the seed."""
    try:
        trace = config.trace.make("trace")
        if isinstance(trace, Workload):
            return trace
        timed = _timed(config, trace)
        if config.workload.max_new_tokens is None:
            return timed
        return replace(timed, rows=with_limits(timed.rows, config.workload, config.model.max_len))
    except MemoryError as error:
        expected = f" ({error})" if str(error) else ""
        raise InputError(
            key="arrivals",
            problem=f"so many requests do not fit into memory{expected}",
            remedy="lower arrivals.rate or arrivals.duration_s",
        ) from None


def with_limits(rows: Rows, options: WorkloadConfig, max_len: int) -> Rows:
    """The rows with the output tokens at most that workload.max_new_tokens declares for them."""
    declared = options.max_new_tokens
    if declared is None:
        return rows
    if rows.max_new_tokens is not None:
        raise InputError(
            key="workload.max_new_tokens",
            value=declared,
            problem="the trace has a column of it",
            remedy="leave it out",
        )
    left = np.maximum(max_len - rows.prompt_len, rows.output_len)
    if isinstance(declared, int):
        limits = np.maximum(rows.output_len, declared)
    elif (factor := declared_factor(declared)) is None:
        limits = left
    else:
        limits = np.minimum(np.ceil(rows.output_len * factor).astype(np.int64), left)
    return replace(rows, max_new_tokens=limits)


def _timed(config: RunConfig, trace: Any) -> Workload | AnswerDrivenWorkload:
    arrivals, options, seed = config.arrivals.make("arrivals"), config.workload, config.seed
    if isinstance(arrivals, AnswerDriven):
        if config.stop_at_latency is not None:
            raise InputError(
                key="stop_at_latency",
                problem="counts arrivals beforehand, which a closed loop has not",
                remedy="set it to null",
            )
        rows = sampled(rows_of(trace, arrivals.num_requests, seed, options.max_len), options, seed)
        loop = arrivals.workload(rows, options.num_seqs, options.beam, seed)
        return replace(loop, has_unread_times=has_times(trace))
    if getattr(arrivals, "replays", False):
        rows = rows_of(trace, None, seed, options.max_len)
        times = checked_times(arrivals, arrivals.times_ps(rows, seed))
    else:
        times = checked_times(arrivals, arrivals.times_ps(None, seed))
        rows = rows_of(trace, len(times), seed, options.max_len)
    if len(rows) != len(times):
        raise InputError(
            key=_class(arrivals),
            problem=f"gave {len(times)} times, and {_class(trace)} {len(rows)} rows",
            remedy="give as many",
        )
    ignores_times = rows.arrival_s is None and has_times(trace)
    rows = sampled(rows, options, seed)
    return Workload(rows, times, options.num_seqs, options.beam, has_unread_times=ignores_times)


def has_times(trace: Any) -> bool:
    """True if a trace says when its requests arrived."""
    return isinstance(trace, FileTrace) and trace.has_times


def sampled(rows: Rows, options: WorkloadConfig, seed: int) -> Rows:
    """The rows with how they sample: by the trace's columns, or by a mix, drawn from a separate
    random stream.
    """
    if rows.num_seqs is not None or rows.beam is not None:
        if options.mix is not None:
            raise InputError(
                key="workload.mix",
                value=options.mix,
                problem="the trace says how each request samples",
                remedy="leave it out",
            )
        options.check_alone("the trace's columns of sequences and beams")
    if options.mix is None:
        return rows
    return with_mix(rows, parse_mix(options.mix), stream(seed, "mix"))


def with_mix(rows: Rows, shares: Sequence[MixShare], rng: np.random.Generator) -> Rows:
    """The rows with a number of sequences, and beam or not, drawn for each by the weights of the
    shares.
    """
    weights = np.array([share.weight for share in shares])
    chosen = rng.choice(len(shares), len(rows), p=weights / weights.sum())
    num_seqs, beam = (
        np.array([share.num_seqs for share in shares]),
        np.array([share.beam for share in shares]),
    )
    return replace(rows, num_seqs=num_seqs[chosen], beam=beam[chosen])


def rows_of(trace: Any, num_rows: int | None, seed: int, max_len: int | None) -> Rows:
    """So many rows of a trace, or with None the whole one. Raises InputError for an object of
    another type.
    """
    try:
        rows = trace.rows(num_rows, seed, max_len)
    except InputError as error:
        if num_rows is not None or isinstance(trace, FileTrace):
            raise
        raise error.with_remedy(
            "arrivals=replay and arrivals=sessions need a whole trace file"
        ) from error
    if not isinstance(rows, Rows):
        raise InputError(
            key=f"{_class(trace)}.rows",
            problem=f"gave {type(rows).__name__}; it must give testbed.core.request.Rows",
        )
    return rows


def checked_times(arrivals: Any, times: Any) -> Column:
    """The arrivals' times as a column, in ps. Raises InputError unless they are whole picoseconds
    in order of time, none before 0 or after LAST_S.
    """
    try:
        column = np.asarray(times)
    except ValueError:  # rows of unequal length
        column = np.empty(())
    is_whole = column.ndim == 1 and (column.dtype.kind in "iu" or not len(column))
    if (
        not is_whole
        or (column < 0).any()
        or (column > LAST_S * PS).any()
        or (column[1:] < column[:-1]).any()
    ):
        raise InputError(
            key=f"{_class(arrivals)}.times_ps",
            problem=(
                f"gave {reprlib.repr(times)}; it must give whole picoseconds, from 0 to "
                f"{LAST_S:,.0f} s, in order of time"
            ),
        )
    return column.astype(np.int64)


def _class(plug_in: Any) -> str:
    return f"{type(plug_in).__module__}.{type(plug_in).__qualname__}"
