"""The table of the arena: means over workloads, differences from LRU on the same seeds, and ranks
if the intervals separate entrants.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log

from testbed.experiments.arena.arena_bounds import BELADY, LRU, NAMES
from testbed.experiments.arena.arena_cell import Row
from testbed.study.replications import Interval, interval, paired

Cells = Mapping[tuple[str, int], Row]  # of one entrant, by condition and seed
NO_RESOURCES: Mapping[str, str] = {}


@dataclass(frozen=True)
class Standing:
    """An entrant over all conditions.

    job: the mean time of a job in percent of LRU's, 100 means equal: the geometric mean over
    conditions of each seed, with the interval over seeds. way: its hits on the way from LRU's (0)
    to Belady's (1); None if these are equal. rank: 1 plus the number of entrants with the same
    resources whose jobs are faster by an interval without zero; None for a bound. only: the
    workload without which it would not be distinguishable from LRU, if there is one. resources:
    memory and engines besides LRU's, in words.
    """

    name: str
    rank: int | None
    job: Interval
    hits: float
    way: float | None
    ttft_p50: float
    ttft_p99: float
    itl_p50: float
    itl_p99: float
    goodput: float
    computed: int
    idle_memory: float
    cpu_us: float
    only: str = ""
    resources: str = ""


def standings(
    played: Mapping[str, Cells], resources: Mapping[str, str] = NO_RESOURCES
) -> list[Standing]:
    """All entrants whose cells are complete, the fastest first; resources: those of entrants that
    have more than LRU, by name.
    """
    logs = {name: logs_of(cells, played[LRU]) for name, cells in played.items()}
    ranked = [name for name in played if name not in NAMES]
    rows = list[Standing]()
    for name in played:
        own = resources.get(name, "")
        peers = [logs[other] for other in ranked if resources.get(other, "") == own]
        rank = _rank(logs[name], peers) if name in ranked else None
        rows.append(replace(_standing(name, played, logs[name], rank), resources=own))
    return sorted(rows, key=lambda standing: standing.job.mean)


def logs_of(cells: Cells, reference: Cells) -> list[float]:
    """For each seed the mean over conditions of the log of job times over LRU's."""
    seeds = sorted({seed for _, seed in cells})
    return [
        _mean(
            [log(row.job_s / reference[key].job_s) for key, row in cells.items() if key[1] == seed]
        )
        for seed in seeds
    ]


def _rank(own: Sequence[float], peers: Sequence[Sequence[float]]) -> int:
    return 1 + sum(is_faster(other, own) for other in peers)


def is_faster(logs: Sequence[float], others: Sequence[float]) -> bool:
    """True if jobs are shorter than others on the same seeds, by an interval without zero."""
    difference = paired(logs, others)
    return difference.mean < 0 and not difference.includes_zero


def _standing(
    name: str, played: Mapping[str, Cells], logs: Sequence[float], rank: int | None
) -> Standing:
    cells, lru = played[name], played[LRU]
    rows = [*cells.values()]
    ratios = {
        column: exp(
            _mean(
                [
                    log(getattr(row, column) / getattr(lru[key], column))
                    for key, row in cells.items()
                ]
            )
        )
        for column in ("ttft_p50_s", "ttft_p99_s", "itl_p50_s", "itl_p99_s")
    }
    return Standing(
        name=name,
        rank=rank,
        job=interval([100 * exp(value) for value in logs]),
        hits=_mean([row.hits for row in rows]),
        way=_way(cells, lru, played.get(BELADY, {})),
        ttft_p50=100 * ratios["ttft_p50_s"],
        ttft_p99=100 * ratios["ttft_p99_s"],
        itl_p50=100 * ratios["itl_p50_s"],
        itl_p99=100 * ratios["itl_p99_s"],
        goodput=_mean([row.goodput for row in rows]),
        computed=sum(row.computed for row in rows),
        idle_memory=_mean([row.idle_memory for row in rows]),
        cpu_us=_mean([row.cpu_us for row in rows]),
        only="" if name in NAMES else _only(cells, lru),
    )


def _way(cells: Cells, lru: Cells, belady: Cells) -> float | None:
    if belady.keys() != cells.keys():
        return None
    own, low, high = (_mean([row.hits for row in some.values()]) for some in (cells, lru, belady))
    return (own - low) / (high - low) if high > low else None


def _only(cells: Cells, lru: Cells) -> str:
    """The workload that alone makes the entrant differ from LRU."""
    if not _differs(cells, lru):
        return ""
    names = dict.fromkeys(condition.partition(",")[0] for condition, _ in cells)
    for name in names if len(names) > 1 else ():
        others = {key: row for key, row in cells.items() if key[0].partition(",")[0] != name}
        if not _differs(others, lru):
            return name
    return ""


def _differs(cells: Cells, lru: Cells) -> bool:
    logs = logs_of(cells, lru)
    return not interval(logs).includes_zero


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
