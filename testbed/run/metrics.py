"""Pure functions from a run's records to its metrics, and to the requests that meet the service
level objectives.
"""

from collections.abc import Mapping
from math import fsum, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.core.request import PS, Column
from testbed.engine.fragmentation import pool_parts
from testbed.engine.gap_runs import GapParts
from testbed.engine.packed_rows import PackedRows
from testbed.engine.recorder import Recorder
from testbed.engine.token_gaps import TokenGaps
from testbed.engine.totals import Measures, Totals
from testbed.run.config import Slo as Slo
from testbed.run.percentiles import percentiles
from testbed.run.while_arriving import while_arriving
from testbed.study.waiting_trend import wait_growth

Floats = NDArray[np.float64]
KINDS = ("token_states", "reserved", "internal", "external")
FREE = ("cached", "largest_free", "free")
PERCENTILES = (50, 90, 95, 99)
SLOW = (50, 10, 1)
SERVED, OFFERED = "served_requests_per_s", "offered_requests_per_s"
WAIT_GROWTH = "wait_growth_s_per_s"
WHILE_ARRIVING = "while_arriving"
# A smaller share of the arrivals that begin is an overload, unless within the noise of few requests
KEPT_UP = 0.9


def spread(values: Floats) -> dict[str, float | None]:
    if not len(values):
        return dict.fromkeys(("mean", *(f"p{p}" for p in PERCENTILES)))
    found = percentiles(values, PERCENTILES)
    return {
        "mean": float(values.mean()),
        **{f"p{p}": value for p, value in zip(PERCENTILES, found, strict=True)},
    }


def spread_of_gaps(runs: GapParts) -> dict[str, float | None]:
    """The `spread` of all gaps of these runs, in s."""
    total = runs.total
    if not total:
        return spread(np.empty(0))
    places = np.array(PERCENTILES) / 100 * (total - 1)
    ranks = [int(rank) for place in places for rank in (np.floor(place), np.ceil(place))]
    below, above = np.array(runs.ranked(ranks)).reshape(-1, 2).T
    found = (below + (above - below) * (places % 1)) / PS
    return {
        "mean": runs.sum_ps() / total / PS,
        **{f"p{p}": value for p, value in zip(PERCENTILES, found.tolist(), strict=True)},
    }


def user_speeds(log: PackedRows) -> dict[str, float | None]:
    """Output tokens per second behind the first token, of the requests that have such: mean, and
    percentiles from the slow end (90% of the requests are at least as fast as p10).
    """
    _, first, finish, output_len = _times(log)
    streams = (finish > first) & (output_len > 1)
    speeds = (output_len[streams] - 1) * PS / (finish - first)[streams]
    if not len(speeds):
        return dict.fromkeys(("mean", *(f"p{p}" for p in SLOW)))
    names = [f"p{p}" for p in SLOW]
    found = percentiles(speeds, SLOW)
    return {"mean": float(speeds.mean()), **dict(zip(names, found, strict=True))}


def latencies(log: PackedRows) -> dict[str, Floats]:
    """Latencies of every served request in s: end to end, normalized, TTFT, and TPOT of outputs
    above one token.
    """
    columns = _times(log)
    arrival, first, finish, output_len = columns[:, columns[2] >= 0]
    longer = output_len > 1
    return {
        "normalized_latency_s_per_token": (finish - arrival) / PS / output_len,
        "e2e_s": (finish - arrival) / PS,
        "ttft_s": (first - arrival) / PS,
        "tpot_s": (finish - first)[longer] / PS / (output_len[longer] - 1),
    }


def filling_s(log: PackedRows) -> float | None:
    """The time in s by which a server that starts empty lags behind its steady state: what remains
    of a request in service on average, E[S^2] / (2 E[S]) of the latencies S, in a queue with a
    server for each request (M/G/inf; Cox, Renewal Theory, 1962, 5.2). None if no request was
    served.
    """
    e2e_s = latencies(log)["e2e_s"]
    return float((e2e_s**2).sum() / (2 * e2e_s.sum())) if e2e_s.sum() else None


def longest_gaps(log: PackedRows, gaps: TokenGaps) -> Floats:
    """The longest time in s between two tokens of every served request that has several."""
    columns = log.columns()
    longest_ps = gaps.longest_of(columns["request_id"][columns["finish_ps"] >= 0])
    return longest_ps[longest_ps >= 0] / PS


def pool_shares(
    totals: Totals, num_slots: int, elapsed_ps: int
) -> dict[str, dict[str, float | None]]:
    """`shares_of` a pool of num_slots slots in elapsed_ps."""
    return shares_of(totals, num_slots * totals.iterations, num_slots * elapsed_ps)


def shares_of(
    totals: Totals, slot_iterations: int, slot_ps: int
) -> dict[str, dict[str, float | None]]:
    """Shares of all slots, averaged over iterations and over time: section 3.1's KINDS, and those
    of FREE.

    FREE are cached blocks without a reference, the largest run for one sequence, and all free
    slots. If all free slots are interchangeable, as in a paged pool, `free` equals `external`.
    """
    by_iteration = _parts(totals.per_iteration, slot_iterations)
    by_time = _parts(totals.over_time, slot_ps)
    return {
        name: {"per_iteration": by_iteration[name], "over_time": by_time[name]}
        for name in (*KINDS, *FREE)
    }


def saving(totals: Totals) -> dict[str, float | None]:
    """1 - 1 / (mean references of a held slot): the artifact's measure of the memory that sharing
    saves (Figure 15).
    """
    sums = {
        "per_iteration": (totals.shared, totals.iterations),
        "over_time": (totals.shared_ps, totals.busy_ps),
    }
    return {
        name: 1 - 1 / (1 + fsum(saved / held for held, saved in shared.items()) / whole)
        if whole
        else None
        for name, (shared, whole) in sums.items()
    }


def summarize(
    recorder: Recorder,
    num_slots: int,
    window_ps: tuple[int, int] | None = None,
    slo: Slo | None = None,
    sessions: Column | None = None,
) -> dict[str, Any]:
    """The content of summary.json; batch and memory are averages over the window, or over the whole
    run. sessions: that of each request by its id, if requests wait for the answers of theirs.
    """
    totals, end_ps = recorder.totals, recorder.end_ps
    averaged, elapsed_ps = _window(recorder, window_ps)
    seconds, shares = end_ps / PS, pool_shares(averaged, num_slots, elapsed_ps)
    log, gaps = recorder.requests, recorder.token_gaps()
    inside = kept(log, slo, gaps) if slo else None
    return {
        "requests": _request_counts(totals),
        **{name: spread(values) for name, values in latencies(log).items()},
        "itl_s": spread_of_gaps(gaps.runs),
        "itl_max_s": spread(longest_gaps(log, gaps)),
        "tokens_per_s_per_user": user_speeds(log),
        "slo": goodput(log, slo or Slo(), seconds, gaps),
        "throughput": {
            "requests_per_s": _ratio(totals.finished, seconds),
            "output_tokens_per_s": _ratio(totals.generated, seconds),
        },
        WHILE_ARRIVING: while_arriving(log, totals.arrived, inside, sessions),
        "batch": {
            "mean_per_iteration": _ratio(averaged.per_iteration.running, averaged.iterations),
            "mean_over_time": _ratio(averaged.over_time.running, elapsed_ps),
        },
        "memory": {kind: shares[kind] for kind in KINDS},
        "memory_free": {name: shares[name] for name in FREE},
        "memory_saving": saving(averaged),
        "preemptions": {"swap": totals.swaps, "recompute": totals.recomputes},
        "recomputed_tokens": totals.recomputed,
        "copies": totals.copies,
        "iterations": totals.iterations,
        "simulated_s": seconds,
    }


def _request_counts(totals: Totals) -> dict[str, int]:
    """The numbers of requests that came and ended; `cancelled` only if some were."""
    counts = {
        "arrived": totals.arrived,
        "finished": totals.finished,
        "rejected": totals.rejected,
    }
    return {**counts, "cancelled": totals.cancelled} if totals.cancelled else counts


def _window(recorder: Recorder, window_ps: tuple[int, int] | None) -> tuple[Totals, int]:
    """The totals of the window and its length in ps; the window ends early if the run does."""
    if window_ps is None:
        return recorder.totals, recorder.end_ps
    start, end = (recorder.snapshots.get(time) for time in window_ps)
    if start is None:
        return Totals(), 0
    totals, end_ps = (end.totals, end.time_ps) if end else (recorder.totals, recorder.end_ps)
    return totals.since(start.totals), end_ps - start.time_ps


def _times(log: PackedRows) -> NDArray[np.int64]:
    columns = log.columns()
    return np.array(
        [columns[name] for name in ("arrival_ps", "first_token_ps", "finish_ps", "output_len")]
    )


def _parts(sums: Measures, total: int) -> dict[str, float | None]:
    return {name: _ratio(part, total) for name, part in pool_parts(sums, total)._asdict().items()}


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def kept(log: PackedRows, slo: Slo, gaps: TokenGaps) -> NDArray[np.bool_]:
    """True for each request that was answered and met all objectives; an output of one token has no
    TPOT and no gap. gaps: those of the requests in the log.
    """
    arrival, first, finish, output_len = _times(log)
    inside: NDArray[np.bool_] = finish >= 0
    if slo.ttft_s is not None:
        inside &= (first - arrival) / PS <= slo.ttft_s
    if slo.tpot_s is not None:
        of_one_token = output_len == 1  # whose batch may be answered later
        inside &= of_one_token | ((finish - first) / PS <= slo.tpot_s * (output_len - 1))
    if slo.itl_s is not None:
        inside &= gaps.longest_of(log.columns()["request_id"]) / PS <= slo.itl_s
    if slo.e2e_s is not None:
        inside &= (finish - arrival) / PS <= slo.e2e_s
    return inside


def goodput(
    log: PackedRows, slo: Slo, simulated_s: float, gaps: TokenGaps
) -> dict[str, float | None]:
    """The objectives in s, the share of ended requests that met all of them, and the rate of those
    in requests/s.
    """
    inside = int(kept(log, slo, gaps).sum()) if slo else None
    return {
        **slo.limits,
        "share_inside": None if inside is None or not len(log) else inside / len(log),
        "goodput_requests_per_s": None
        if inside is None or not simulated_s
        else inside / simulated_s,
    }


def overload(
    arrival_s: NDArray[np.float64], first_token_s: NDArray[np.float64]
) -> dict[str, float] | None:
    """Rates (req/s) of first tokens and of arrivals in the second half of the time in which
    requests arrive; if these are close, also the growth of the waiting time (s per s).

    The requests are those that were not rejected. first_token_s: NaN for one without a first token.
    None: the server kept up, or the requests are too few to judge by.
    """
    last = float(arrival_s.max()) if len(arrival_s) else 0.0
    offered = int((arrival_s > last / 2).sum())
    served = int(((first_token_s > last / 2) & (first_token_s <= last)).sum())
    if not last:
        return None
    rates = {SERVED: served / (last / 2), OFFERED: offered / (last / 2)}
    if served < KEPT_UP * offered and offered - served > 3 * sqrt(offered):
        return rates
    growth = wait_growth(arrival_s, first_token_s - arrival_s)
    return None if growth is None else {**rates, WAIT_GROWTH: growth}


def in_words(overloaded: Mapping[str, Any]) -> str:
    """Such as "0.59 of 1 req/s get a first token in the second half of the arrivals; the queue
    grows".
    """
    rates = f"{overloaded[SERVED]:.4g} of {overloaded[OFFERED]:.4g} req/s get a first token"
    growth = overloaded.get(WAIT_GROWTH)
    if growth is not None:
        rates = f"each second of arrivals adds {growth:.2g} s to the waiting time"
    return f"{rates} in the second half of the arrivals; the queue grows"
