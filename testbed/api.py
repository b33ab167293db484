"""What `import testbed` offers: simulate, sweep, capacity, check; their options are those of the
command line.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from testbed.checking import check as check
from testbed.config import RunConfig, plain_values
from testbed.core.errors import InputError
from testbed.core.request import Request
from testbed.description import RUN, costs_of, flat, merge_axes
from testbed.knee import highest_rate
from testbed.replications import Interval, interval
from testbed.result import Result, front_end
from testbed.run import run

if TYPE_CHECKING:
    import pandas as pd

SHARE, PRECISION = 0.9, 0.02
NEAR = 1.1  # the capacities of two seeds differ by about this factor
RATE = "arrivals.rate"
MAX_REQUESTS = 3_000_000
Seen = Callable[[float, float], None]
# Names of options that ship, so that an editor can complete them; `testbed list` shows all.
PolicyName = Literal[
    "contiguous_max",
    "contiguous_oracle",
    "contiguous_pow2",
    "grouped",
    "grouped_caching",
    "paged",
    "paged_2023",
    "prefix_caching",
    "prefix_caching_v1",
    "prefix_caching_v1_33",
    "tiered",
    "tiered_exclusive",
]
SchedulerName = Literal[
    "by_session",
    "chunked",
    "mixed",
    "mixed_2023",
    "priority",
    "separate",
    "static",
    "time_to_live",
    "vllm_v1",
    "vllm_v1_async",
]
PreemptionName = Literal["paper", "recompute", "recompute_tail", "swap"]


def simulate(
    *overrides: str,
    policy: PolicyName | object = None,
    scheduler: SchedulerName | object = None,
    preemption: PreemptionName | object = None,
    trace: Any = None,
    rate: float | None = None,
    duration_s: float | None = None,
    from_vllm: str | None = None,
    **options: Any,
) -> Result:
    """Simulate one run; nothing is written. What is not given is as `testbed run` has it.

    A part may be a name, a class, or a pair of class and parameters such as (Paged, {"block_size":
    32}).

    Raises InputError, in one line, for what makes no sense.

    Args:
        *overrides: words of the command line, such as `arrivals.rate=2`.
        policy: a name of `testbed list policy`, a MemoryPolicy class (or a function of the
            PoolSpec), a pair of class and parameters, or a new policy object.
        scheduler: a name of `testbed list scheduler`, or a part.
        preemption: a name of `testbed list preemption`, or a part.
        trace: a name, a list of `testbed.core.request.Request` with their own times (ps), or a data
            frame with prompt_len and output_len in tokens; its other columns are those of trace=csv
            (prompt_ids are the ids of its tokens), of which arrival_s (s) is played back where no
            rate, duration or arrivals are given.
        rate: requests/s.
        duration_s: seconds in which requests arrive.
        from_vllm: a server's command, "vllm serve MODEL ...", whose options come before all others;
            gpu=NAME says on which GPU.
        **options: the other groups of the command line (model, server, gpu, cost, arrivals, beams,
            system, protocol, eviction), each a name or an object of its kind, and its values: seed,
            num_seqs (sequences a request), beam, max_len (tokens), swap_space_gib, window_s=(from,
            to), slo={"ttft_s": 1, "tpot_s": 0.1}, and any other by its key, as in
            **{"policy.block_size": 32}.
    """
    options |= {"policy": policy, "scheduler": scheduler, "preemption": preemption}
    options |= {"trace": trace, "rate": rate, "duration_s": duration_s, "from_vllm": from_vllm}
    return run(front_end().configure(overrides, options))


def sweep(
    *overrides: str, jobs: int | None = None, folder: str | Path | None = None, **options: Any
) -> "pd.DataFrame":
    """One row for each combination of options; an option that is a list is an axis, a tuple is one
    value.

    A list of requests is a trace and no axis; several are a list of lists. Columns: the axes, what
    each run was, then its summary, nested names joined by an underscore (ttft_s_p95: s). An axis
    that has the name of such a column leaves it the name `..._in_full`.

    Args:
        *overrides: words of the command line, such as `arrivals.rate=2`.
        jobs: processes; None: one for each core.
        folder: where run folders are kept, as `testbed run` keeps them; what is complete there is
            not run again. It takes names alone, for a folder cannot hold an object.
        **options: those of `simulate`, each one value or a list of them.
    """
    import pandas as pd
    from joblib import Parallel, delayed

    if jobs is not None and (type(jobs) is not int or jobs < 1):
        raise InputError(
            f"jobs={jobs!r}: must be a whole number of at least 1, or None for all cores"
        )
    axes = {key: list(value) for key, value in options.items() if _is_axis(value)}
    if any(not values for values in axes.values()):
        raise InputError(
            f"{next(key for key, values in axes.items() if not values)} is an empty list"
        )
    points = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    workers = min(jobs or os.cpu_count() or 1, len(points))
    work = (delayed(_measured)(overrides, {**options, **point}, folder) for point in points)
    named = [
        {key: getattr(value, "__name__", value) for key, value in point.items()} for point in points
    ]
    rows = [flat(summary) for summary in Parallel(n_jobs=workers)(work)]
    return pd.DataFrame(
        [{**point, **merge_axes(list(axes), row)} for point, row in zip(named, rows, strict=True)]
    )


@dataclass(frozen=True)
class Capacity:
    """The highest rate that one seed found; 1 + precision times this rate misses the SLO.

    Attributes:
        rate: the highest simulated rate (requests/s) that meets the SLO.
        share: the share of the requests that must meet it, above 0 and at most 1.
        points: (rate, share inside, goodput in requests/s) of every simulated rate.
        costs: the source of the runs' costs and their tested error; empty on a GPU.
        future_read: what the runs read of the future, as no real server can; empty where they read
            nothing.
    """

    rate: float
    share: float
    points: tuple[tuple[float, float, float], ...]
    costs: str = ""
    future_read: str = ""

    @property
    def table(self) -> "pd.DataFrame":
        """What was simulated, in order of rate."""
        import pandas as pd

        return pd.DataFrame(
            self.points, columns=["rate_requests_per_s", "share_inside", "goodput_requests_per_s"]
        )


def capacity(
    *overrides: str,
    ttft_s: float | None = None,
    tpot_s: float | None = None,
    itl_s: float | None = None,
    e2e_s: float | None = None,
    share: float = SHARE,
    low: float = 0.5,
    high: float = 2.0,
    precision: float = PRECISION,
    folder: str | Path | None = None,
    seen: Seen | None = None,
    **options: Any,
) -> Capacity:
    """Find the highest rate (requests/s) at which `share` of the requests meet the SLO, with one
    seed.

    A request must meet all objectives that are given, at least one, here or as slo.ttft_s=... among
    the overrides. `capacities` gives the range over several seeds. Raises InputError if no rate
    meets the SLO, or every rate does.

    Args:
        *overrides: words of the command line, such as `arrivals.rate=2`.
        ttft_s: seconds to the first token.
        tpot_s: seconds for each later token on average.
        itl_s: seconds between two tokens.
        e2e_s: seconds to the last token.
        share: the share of the requests that must meet the SLO, above 0 and at most 1.
        low: the lower end of the first guess, in requests/s; moved outward as far as it takes.
        high: the upper end of the first guess, in requests/s.
        precision: the search ends when a rate that misses is at most 1 + precision times one that
            keeps.
        folder: as in `sweep`.
        seen: called as seen(rate, share_inside) after every run.
        **options: those of `simulate`, without a rate.
    """
    _check_search(share, low, high, precision)
    _check_no_rate(overrides, options)
    options |= _given_objectives(ttft_s=ttft_s, tpot_s=tpot_s, itl_s=itl_s, e2e_s=e2e_s)
    _check_objectives(front_end().configure(overrides, options))
    summaries: dict[float, dict[str, Any]] = {}  # by rate

    def share_inside(rate: float) -> float:
        summaries[rate] = _measured(overrides, {**options, "rate": rate}, folder)
        if seen:
            seen(rate, summaries[rate]["slo"]["share_inside"] or 0.0)
        return _inside(summaries[rate], rate)[0]

    highest = highest_rate(share_inside, share, low, high, precision)
    points = tuple((rate, *_inside(summaries[rate], rate)) for rate in sorted(summaries))
    return Capacity(highest, share, points, costs_of(summaries[highest]), _futures(summaries))


def _given_objectives(**objectives: float | None) -> dict[str, float]:
    """The objectives that are given, as options of a run."""
    return {f"slo.{name}": seconds for name, seconds in objectives.items() if seconds is not None}


def _futures(summaries: Mapping[float, dict[str, Any]]) -> str:
    """What the runs read of the future, in words; an empty text for nothing."""
    read = {summary.get(RUN, {}).get("future_read") for summary in summaries.values()}
    return "; ".join(sorted(filter(None, read)))


@dataclass(frozen=True)
class Capacities:
    """The capacity with each seed, in requests/s.

    Attributes:
        of_seed: what each seed found, by seed.
    """

    of_seed: Mapping[int, Capacity]

    @property
    def rate(self) -> Interval:
        """The mean over the seeds, with its 95% interval."""
        return interval([found.rate for found in self.of_seed.values()])


def capacities(
    *overrides: str, seeds: Sequence[int], low: float = 0.5, high: float = 2.0, **options: Any
) -> Capacities:
    """`capacity` with each of these seeds; each search begins around the answer of the last one.

    Raises InputError as `capacity` does, and without a seed.

    Args:
        *overrides: words of the command line, such as `arrivals.rate=2`.
        seeds: different whole numbers, each one repetition.
        low: the lower end of the first seed's first guess, in requests/s.
        high: its upper end, in requests/s.
        **options: those of `capacity`.
    """
    if not seeds:
        raise InputError("seeds: names no seed (seeds=range(3))")
    if len(set(seeds)) < len(seeds):
        raise InputError(f"seeds={list(seeds)}: names a seed twice (give each once)")
    of_seed = dict[int, Capacity]()
    for seed in seeds:
        of_seed[seed] = capacity(*overrides, low=low, high=high, seed=seed, **options)
        low, high = of_seed[seed].rate / NEAR, of_seed[seed].rate * NEAR
    return Capacities(of_seed)


def _check_search(share: float, low: float, high: float, precision: float) -> None:
    """Raise InputError for limits of a search that make no sense."""
    if not 0 < share <= 1:
        raise InputError(f"share={share}: must be above 0 and at most 1")
    if not 0 < low < high:
        raise InputError(f"low={low} high={high}: must be rates above 0, the lower one first")
    if not precision > 0:
        raise InputError(f"precision={precision}: must be above 0")


def _check_no_rate(overrides: Sequence[str], options: Mapping[str, Any]) -> None:
    """Raise InputError for a rate, which capacity looks for."""
    has_option = any(options.get(key) is not None for key in ("rate", RATE))
    if has_option or any(word.lstrip("+").startswith(f"{RATE}=") for word in overrides):
        raise InputError("rate is what capacity looks for; say where to begin by low and high")


def _check_objectives(config: RunConfig) -> None:
    """Raise InputError unless the config has objectives, and its run serves every request."""
    if not config.slo:
        raise InputError(
            "no objective is given; say slo.ttft_s=..., slo.tpot_s=..., slo.itl_s=... or "
            "slo.e2e_s=..."
        )
    for name in ("stop_at_latency", "window_s"):
        if getattr(config, name) is not None:
            raise InputError(
                f"{name}={plain_values(getattr(config, name))}: a run that stops before its end "
                "leaves out the slowest requests, which capacity counts (set it to null)"
            )
    bound = config.arrivals.parameters.get("max_in_flight")
    if bound is not None:
        raise InputError(
            f"arrivals.max_in_flight={bound}: what waits at its client is in no latency, so no "
            "rate would miss the objectives (set it to null)"
        )


def _measured(
    overrides: Sequence[str], options: Mapping[str, Any], folder: str | Path | None
) -> dict[str, Any]:
    if folder is None:
        return run(front_end().configure(overrides, options)).summary
    config = front_end().configure(overrides, {"outputs": "summary", **options})
    return front_end().measure(config, Path(folder))


def _inside(summary: dict[str, Any], rate: float) -> tuple[float, float]:
    slo, arrived = summary["slo"], summary["requests"]["arrived"]
    if slo["share_inside"] is None:
        raise InputError(
            f"at {rate:g} requests/s none comes in time; the objectives may be out of reach, or "
            f"raise "
            "arrivals.duration_s"
        )
    if arrived > MAX_REQUESTS:
        raise InputError(f"even {rate:g} requests/s keep the objectives; they limit nothing")
    return slo["share_inside"], slo["goodput_requests_per_s"]


def _is_axis(value: Any) -> bool:
    if isinstance(value, list):
        return not (value and isinstance(value[0], Request))
    return isinstance(value, range) or (type(value).__name__ == "ndarray" and value.ndim == 1)
