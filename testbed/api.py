"""The names of `import testbed` that run something: simulate, sweep, capacity; their options are
those of the command line.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed.core.errors import InputError
from testbed.core.request import Request
from testbed.run.description import configured
from testbed.run.parts import Part
from testbed.run.result import Result, front_end
from testbed.run.simulate import run
from testbed.run.summaries import flat, merge_axes
from testbed.study.capacity_search import (
    HIGH,
    LOW,
    PRECISION,
    SHARE,
    Capacities,
    Capacity,
    CapacitySearch,
    Seen,
    given_objectives,
    measured,
    usual_duration,
)

if TYPE_CHECKING:
    from testbed.study.swept import Sweep

NEAR = 1.1  # the capacities of two seeds differ by about this factor


def simulate(
    *overrides: str,
    policy: object = None,
    scheduler: object = None,
    preemption: object = None,
    trace: Any = None,
    rate: float | None = None,
    duration_s: float | None = None,
    from_vllm: str | None = None,
    from_sglang: str | None = None,
    **options: Any,
) -> Result:
    """Simulate one run; nothing is written. Values that are not given are those of `testbed run`.

    A part is a name of `testbed list`, a class, or a pair of class and parameters such as (Paged,
    {"block_size": 32}). Raises InputError, in one line, for what makes no sense.

    Args:
        *overrides: words of the command line, such as `arrivals.rate=2`.
        policy: a part, a function of the PoolSpec, or a new policy object.
        scheduler: a part.
        preemption: a part.
        trace: a name, a list of `testbed.core.request.Request` with their own times (ps), or a data
            frame with prompt_len and output_len in tokens; its other columns are those of trace=csv
            (prompt_ids are the ids of its tokens), of which arrival_s (s) is played back if no
            rate, duration or arrivals are given.
        rate: requests/s.
        duration_s: seconds in which requests arrive.
        from_vllm: a command "vllm serve MODEL ...", whose options come first; gpu=NAME: its GPU.
        from_sglang: the same of SGLang, "sglang serve --model-path MODEL ...".
        **options: the other groups of the command line (model, server, gpu, cost, arrivals, beams,
            system, protocol, eviction, order), each a name or an object of its kind, and its
            values: seed, release, num_seqs (of a request), beam, max_len (tokens), swap_space_gib,
            window_s=(from, to), slo={"ttft_s": 1}, any other as **{"policy.block_size": 32}.
    """
    options |= {"policy": policy, "scheduler": scheduler, "preemption": preemption}
    options |= {"trace": trace, "rate": rate, "duration_s": duration_s}
    options |= {"from_vllm": from_vllm, "from_sglang": from_sglang}
    front_end().note_displaced(overrides, options)
    return run(front_end().configure(overrides, options))


def sweep(
    *overrides: str, jobs: int | None = None, folder: str | Path | None = None, **options: Any
) -> "Sweep":
    """One row for each combination of options; an option that is a list is an axis, a tuple is one
    value.

    A list of requests is a trace and no axis; several are a list of lists. Columns: the axes, what
    each run was, then its summary, nested names joined by an underscore (ttft_s_p95: s). An axis
    that has the name of such a column leaves it the name `..._in_full`. The table is a data frame
    with `.summary`, means over the axis `seed` with 95% intervals, and `.plot()`, a figure. If not
    all servers have measured iterations, the costs of all are derived, as a note on stderr says.

    Args:
        *overrides: words of the command line, such as `arrivals.rate=2`.
        jobs: processes; None: one for each core.
        folder: where run folders are kept, as `testbed run` keeps them; what is complete there is
            not run again. It takes names alone, for a folder cannot hold an object.
        **options: those of `simulate`, each one value or a list of them.
    """
    from joblib import Parallel, delayed

    from testbed.study.swept import Sweep

    axes, num_jobs = _axes(options), _checked(jobs)
    front_end().note_displaced(overrides, options)
    points = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    fixed = {key: value for key, value in options.items() if key not in axes}
    overrides = (*front_end().with_one_source(overrides, fixed, points),)
    workers = min(num_jobs, len(points))
    work = (delayed(measured)(overrides, {**options, **point}, folder) for point in points)
    named = [{key: _cell(value) for key, value in point.items()} for point in points]
    rows = [flat(summary) for summary in Parallel(n_jobs=workers)(work)]
    table = Sweep(
        [{**point, **merge_axes(list(axes), row)} for point, row in zip(named, rows, strict=True)]
    )
    table.attrs["axes"] = list(axes)
    return table


def _checked(jobs: int | None) -> int:
    """The number of processes; raises InputError for any other value."""
    if jobs is not None and (type(jobs) is not int or jobs < 1):
        raise InputError(
            key="jobs",
            value=repr(jobs),
            problem="must be a whole number of at least 1, or None for all cores",
        )
    return jobs or os.cpu_count() or 1


def _cell(value: Any) -> Any:
    """A value of an axis in the table: a class by its name, a pair as `Paged(block_size=32)`, a
    mapping as `ttft_s=1, tpot_s=0.1`.
    """
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={part}" for key, part in value.items())
    is_pair = isinstance(value, tuple) and len(value) == 2
    if is_pair and callable(value[0]) and isinstance(value[1], Mapping):
        return configured(Part(value[0], value[1]))
    return getattr(value, "__name__", value)


def capacity(
    *overrides: str,
    ttft_s: float | None = None,
    tpot_s: float | None = None,
    itl_s: float | None = None,
    e2e_s: float | None = None,
    share: float = SHARE,
    low: float = LOW,
    high: float = HIGH,
    precision: float = PRECISION,
    folder: str | Path | None = None,
    seen: Seen | None = None,
    **options: Any,
) -> Capacity:
    """Find the highest rate at which `share` of the requests meet the SLO, with one seed.

    A request must meet all objectives that are given, at least one, here or as slo.ttft_s=... among
    the overrides. Each rate has 300 s of arrivals, unless duration_s or the arrivals say otherwise.
    `capacities` gives the range over several seeds. Raises InputError if no rate meets the SLO, or
    every rate does.

    Args:
        *overrides: words of the command line, such as `model=opt-13b`.
        ttft_s: seconds to the first token.
        tpot_s: seconds for each later token on average.
        itl_s: seconds between two tokens.
        e2e_s: seconds to the last token.
        share: the share of the requests that must meet the SLO, above 0 and at most 1.
        low: the lower end of the first guess, in requests/s; moved outward as far as it takes.
        high: the upper end of the first guess, in requests/s.
        precision: it ends when a rate that misses is at most 1 + precision times one that keeps.
        folder: as in `sweep`.
        seen: called as seen(rate, share_inside) after every run.
        **options: those of `simulate`, without a rate.
    """
    options |= given_objectives(ttft_s=ttft_s, tpot_s=tpot_s, itl_s=itl_s, e2e_s=e2e_s)
    words, options = front_end().noted_once(overrides, options)
    words = (*words, *usual_duration(words, options))
    search = CapacitySearch(words, options, folder, seen)
    return search.highest(share, low, high, precision)


def capacities(
    *overrides: str,
    seeds: Sequence[int],
    low: float = LOW,
    high: float = HIGH,
    began: Callable[[int], None] | None = None,
    **options: Any,
) -> Capacities:
    """`capacity` with each of these seeds; each search begins around the answer of the last one.

    Raises InputError as `capacity` does, and without a seed.

    Args:
        *overrides: words of the command line, such as `arrivals.rate=2`.
        seeds: different whole numbers, each one repetition.
        low: the lower end of the first seed's first guess, in requests/s.
        high: its upper end, in requests/s.
        began: called with each seed before its search.
        **options: those of `capacity`.
    """
    if not seeds:
        raise InputError(key="seeds", problem="names no seed", remedy="seeds=range(3)")
    if len(set(seeds)) < len(seeds):
        raise InputError(
            key="seeds", value=list(seeds), problem="names a seed twice", remedy="give each once"
        )
    words, options = front_end().noted_once(overrides, options)
    of_seed = dict[int, Capacity]()
    for seed in seeds:
        if began is not None:
            began(seed)
        of_seed[seed] = capacity(*words, low=low, high=high, seed=seed, **options)
        low, high = of_seed[seed].rate / NEAR, of_seed[seed].rate * NEAR
    return Capacities(of_seed)


def _axes(options: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The options that are lists. Raises InputError for an empty one."""
    axes = {key: list(value) for key, value in options.items() if _is_axis(value)}
    empty = next((key for key, values in axes.items() if not values), None)
    if empty is not None:
        raise InputError(key=empty, problem="is an empty list", remedy="give a value")
    return axes


def _is_axis(value: Any) -> bool:
    if isinstance(value, list):
        return not (value and isinstance(value[0], Request))
    return isinstance(value, range) or (type(value).__name__ == "ndarray" and value.ndim == 1)
