"""How the time of a plain request, which is fitted, goes to a request, to its sequences and to its forks.

Two parts of a group's software were timed by kind of sampling. The sampler's loop, `testbed measure sampler`: so much a
group, a sequence and a fork, by least squares over the kinds. The scheduler, on a CPU outside this project: 20 us for a
plain request, 230 us for a beam of six; so 20 us a sequence, and the rest of the 230 us by forks. Both are host time:
one factor, the speed of the paper's host, scales both, such that a plain request takes what Figure 13 says.
"""

import csv
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import numpy as np

from testbed.core.errors import InputError
from testbed.experiments.runs.compose import composed
from testbed.sched.beams import search

KEPT = "h200-sampler.csv"  # in kernels/results
PLAIN_S = 0.325e-3  # of a plain request: fitted to vLLM's two bars of Figure 13
SCHEDULER_US = {1: 20.0, 6: 230.0}  # by width: a plain request, a beam
Kind = tuple[str, int]


class Split(NamedTuple):
    """Seconds of a request and of each sequence, how many sequences a fork costs, and the factor of the host."""

    request_s: float
    sequence_s: float
    sequences_per_fork: float
    host: float


def kept_us(path: Path | None = None) -> dict[Kind, float]:
    """Microseconds a group by kind and width: the slope of the loop's time from the fewest groups to the most."""
    kept = resources.files("testbed.kernels") / "results" / KEPT
    text = path.read_text(encoding="utf-8") if path else kept.read_text(encoding="utf-8")
    loops: dict[Kind, dict[int, float]] = {}
    for row in csv.DictReader(line for line in text.splitlines() if not line.startswith("#")):
        loops.setdefault((row["kind"], int(row["width"])), {})[int(row["groups"])] = float(row["median_us"])
    found = {}
    for kind, by_groups in loops.items():
        low, high = min(by_groups), max(by_groups)
        if low == high:
            raise InputError(f"{path or kept}: {kind[0]} {kind[1]} has one number of groups; a slope needs two")
        found[kind] = (by_groups[high] - by_groups[low]) / (high - low)
    return found


def forks_a_step(width: int) -> float:
    """Mean forks of a beam in a step, by the synthetic beams of the figures."""
    steps = search(width, composed("run", ()).beams.concentration, 0)
    return float(np.mean([len(replaced) for replaced in steps]))


def shares_us(us: Mapping[Kind, float]) -> tuple[float, float, float]:
    """Microseconds of the sampler for a group, for each sequence and for each fork."""
    counts = [(1.0, width, forks_a_step(width) if name == "beam" else 0.0) for name, width in us]
    (group, sequence, fork), *_ = np.linalg.lstsq(np.array(counts), np.array(list(us.values())), rcond=None)
    return float(group), float(sequence), float(fork)


def split(us: Mapping[Kind, float], plain_s: float = PLAIN_S) -> Split:
    """The shares of sampler and scheduler, as the paper's host takes them."""
    group, sequence, fork = shares_us(us)
    sequence += SCHEDULER_US[1]
    fork += (SCHEDULER_US[6] - 6 * SCHEDULER_US[1]) / forks_a_step(6)
    host = 1e6 * plain_s / (group + sequence)
    return Split(host * group / 1e6, host * sequence / 1e6, fork / sequence, host)


def report(path: Path | None = None) -> list[str]:
    """Lines for the YAML, and what each kind of request then costs compared with a plain one."""
    us = kept_us(path)
    request_s, sequence_s, per_fork, host = split(us)
    shares = "{:.1f} us a group, {:.1f} a sequence, {:.1f} a fork".format(*shares_us(us))
    lines = [
        f"sampler: {shares}; the paper's host takes {host:.2f} times as long",
        f"choices.overhead_per_request_s: {request_s:.4g}",
        f"choices.overhead_per_sequence_s: {sequence_s:.4g}",
        f"choices.sequences_per_fork: {per_fork:.3g}",
    ]
    for (name, width), measured in us.items():
        forks = forks_a_step(width) if name == "beam" else 0.0
        cost = (request_s + sequence_s * (width + per_fork * forks)) / PLAIN_S
        lines.append(f"{name} {width}: {measured:.0f} us of the sampler; costs {cost:.2f} plain requests")
    return lines
