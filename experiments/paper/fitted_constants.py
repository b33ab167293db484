"""Fits the unmeasured constants to the rows of paper/reference.csv with the role `calibrate`.

1. Two software times of the 2023 system, of an iteration and of a plain request, are fitted to
   vLLM's two bars of Figure 13: ShareGPT at 2 req/s from a file of lengths, and Alpaca at 30 req/s
   from the embedded model. The figures read the result from conf/software/sosp23.yaml. The report
   also has elasticities (percent of a bar per percent of a constant) and standard errors. Errors
   come from the bars' spread over NUM_SEEDS seeds, because the paper's bars are of one trace.

2. The concentration of the synthetic beam model is fitted to a beam width of 2 in Figure 15b. It is
   stored in conf/beams/synthetic.yaml; widths 4 and 6 are predictions.

3. A plain request's time is divided among the request, its sequences and its forks. Two parts were
   timed by kind of sampling: the sampler's loop (KEPT, by `testbed gpu measure sampler` of
   c489f123), divided by least squares, and the scheduler, timed on a CPU outside this project. One
   factor, the speed of the paper's host, scales both so that a plain request takes the time fitted
   to Figure 13.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import sqrt
from typing import NamedTuple

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray

from testbed.core.errors import InputError
from testbed.experiments.paper.scorecard import reference
from testbed.experiments.paper.studies.study import kept_rows
from testbed.experiments.runs.compose import composed
from testbed.experiments.runs.run_store import RunStore
from testbed.sched.beam_search import search

# All requests have one sequence, so the whole time counts as that of the sequence.
PLAIN = "cost.software.overhead_per_request_s=0"
COMMON = ("model=opt-13b", "+system=vllm", "window_s=[600,3600]", PLAIN)
PANELS = (("trace=sharegpt", "arrivals.rate=2"), ("trace=alpaca", "arrivals.rate=30"))
CONSTANTS = ("software.overhead_s", "software.overhead_per_sequence_s")
START = (4.5e-4, 3.25e-4)
STEP = (5e-4, 1e-5)  # differences; smaller ones drown in the jumps of a bar
TOLERANCE = 0.005  # a bar of one trace jumps by as much when a constant changes by a thousandth
MAX_ROUNDS = 12
NUM_SEEDS = 5
BEAMS = "opt-13b alpaca beam 2"
LOW, HIGH, PRECISION = 0.1, 10.0, 0.01
Vector = NDArray[np.float64]
KEPT = "h200-sampler.csv"  # in kernels/results
PLAIN_S = 0.325e-3  # of a plain request: fitted to vLLM's two bars of Figure 13
SCHEDULER_US = {1: 20.0, 6: 230.0}  # by width: a plain request, a beam
Kind = tuple[str, int]


def batched(
    panel: tuple[str, ...], seed: int, constants: tuple[float, ...], store: RunStore
) -> float:
    """Mean batched requests of vLLM in one panel with these constants."""
    values = {f"cost.{name}": value for name, value in zip(CONSTANTS, constants, strict=True)}
    run = store.measure((*COMMON, *panel, f"seed={seed}"), values)
    return float(run.summary["batch"]["mean_per_iteration"])


def published() -> Vector:
    """The two published bars."""
    rows = reference().query("role == 'calibrate' and quantity == 'mean_batched_requests'")
    return np.array(rows["published"].astype(float))


@dataclass
class Fit:
    """The fit of the two constants, which are in units of STEP, to logarithms of the bars."""

    store: RunStore
    unit = np.array(STEP)

    def bars(self, x: Vector, seeds: int = 1) -> NDArray[np.float64]:
        """Logarithms of the bars, [seed, panel]; runs of both panels share the cores."""
        constants = tuple((x * self.unit).tolist())
        runs = [
            delayed(batched)(panel, seed, constants, self.store)
            for panel, seed in product(PANELS, range(seeds))
        ]
        bars = np.array(Parallel(len(PANELS))(runs)).reshape(len(PANELS), seeds).T
        for seed, pair in enumerate(bars):
            text = ", ".join(f"{value:.4g}" for value in constants)
            print(f"{text}, seed {seed}: {pair[0]:.2f} {pair[1]:.2f}", flush=True)
        return np.asarray(np.log(bars))

    def error(self, x: Vector) -> Vector:
        """The errors of the bars of seed 0."""
        return np.asarray(self.bars(x)[0] - np.log(published()))

    def slopes(self, x: Vector, now: Vector) -> NDArray[np.float64]:
        """The change of each bar with one step of each constant, [bar, constant]."""
        return np.stack([self.error(x + unit) - now for unit in np.eye(2)], axis=1)

    def solve(self) -> Vector:
        """The constants by Broyden's method, none below zero; InputError without convergence."""
        x: Vector = np.array(START) / self.unit
        now = self.error(x)
        jacobian = None
        for _ in range(MAX_ROUNDS):
            if np.abs(now).max() < TOLERANCE:
                return x
            jacobian = self.slopes(x, now) if jacobian is None else jacobian
            step = (x + np.linalg.solve(jacobian, -now).clip(-1, 1)).clip(0) - x
            x, after = x + step, self.error(x + step)
            jacobian += np.outer(after - now - jacobian @ step, step) / (step @ step)
            now = after
        raise InputError(
            key="the fit",
            problem=(
                f"is not within {TOLERANCE:.1%} after {MAX_ROUNDS} rounds; the last: "
                f"{x * self.unit}"
            ),
        )

    def report(self, x: Vector) -> None:
        """Print the constants as lines of YAML, their standard errors, and the elasticities."""
        slopes = self.slopes(x, self.error(x))
        spread = self.bars(x, NUM_SEEDS).std(axis=0, ddof=1)
        inverse = np.linalg.inv(slopes)
        covariance = inverse @ np.diag(spread**2) @ inverse.T
        errors = np.sqrt(np.diag(covariance))
        for name, value, error in zip(CONSTANTS, x * self.unit, errors * self.unit, strict=True):
            print(f"{name}: {value:.4g}  # standard error {error:.2g}")
        print(f"correlation of their errors: {covariance[0, 1] / errors.prod():+.2f}")
        for panel, row, sd in zip(PANELS, slopes * x, spread, strict=True):
            text = ", ".join(
                f"{elasticity:.3f} by {name}"
                for elasticity, name in zip(row, CONSTANTS, strict=True)
            )
            print(
                f"elasticities of the bar of {panel[0]}: {text}; spread over {NUM_SEEDS} seeds "
                f"{sd:.2%}"
            )


def fit_2023(store: RunStore) -> None:
    """Print the two constants of the 2023 system."""
    fit = Fit(store)
    fit.report(fit.solve())


def fit_beams(store: RunStore) -> float:
    """Find the concentration by bisection.

    The larger it is, the more often beams change parents, and the more memory they share.
    """
    rows = reference().query("setting == @BEAMS and role == 'calibrate'")
    goal = float(rows["published"].iloc[0])
    figure = composed("figure/fig15", ()).figure
    panel = next(panel for panel in figure.panels if panel.setting == BEAMS)
    overrides = ("+system=vllm", *figure.common, *panel.overrides)
    low, high = LOW, HIGH
    while high > low * (1 + PRECISION):
        middle = sqrt(low * high)
        summary = store.measure(overrides, {"beams.concentration": middle}).summary
        saved = 100 * float(summary["memory_saving"]["per_iteration"])
        print(f"concentration {middle:.3f}: {saved:.2f}% saved, published {goal}%", flush=True)
        low, high = (low, middle) if saved > goal else (middle, high)
    return sqrt(low * high)


class Split(NamedTuple):
    """Seconds of a request and of a sequence, a fork's cost in sequences, and the host's factor."""

    request_s: float
    sequence_s: float
    sequences_per_fork: float
    host: float


def kept_us() -> dict[Kind, float]:
    """Microseconds of a group by kind and width.

    This is the slope of the loop's time between the fewest and the most groups.
    """
    us = {}
    for (kind, width), rows in kept_rows(KEPT).groupby(["kind", "width"], sort=False):
        first, last = rows.sort_values("groups").iloc[[0, -1]].to_dict("records")
        us[kind, width] = (last["median_us"] - first["median_us"]) / (
            last["groups"] - first["groups"]
        )
    return us


def forks_a_step(width: int) -> float:
    """Mean forks of a beam in a step, by the synthetic beams of the figures."""
    steps = search(width, composed("run", ()).beams.concentration, 0)
    return float(np.mean([len(replaced) for replaced in steps]))


def shares_us(us: Mapping[Kind, float]) -> tuple[float, float, float]:
    """Microseconds of the sampler for a group, for each sequence and for each fork."""
    counts = [(1.0, width, forks_a_step(width) if name == "beam" else 0.0) for name, width in us]
    (group, sequence, fork), *_ = np.linalg.lstsq(
        np.array(counts), np.array(list(us.values())), rcond=None
    )
    return float(group), float(sequence), float(fork)


def split(us: Mapping[Kind, float]) -> Split:
    """The shares of sampler and scheduler on the paper's host."""
    group, sequence, fork = shares_us(us)
    sequence += SCHEDULER_US[1]
    fork += (SCHEDULER_US[6] - 6 * SCHEDULER_US[1]) / forks_a_step(6)
    host = 1e6 * PLAIN_S / (group + sequence)
    return Split(host * group / 1e6, host * sequence / 1e6, fork / sequence, host)


def report() -> list[str]:
    """Lines of YAML, and the cost of each kind of request relative to a plain one."""
    us = kept_us()
    request_s, sequence_s, per_fork, host = split(us)
    shares = "{:.1f} us a group, {:.1f} a sequence, {:.1f} a fork".format(*shares_us(us))
    lines = [
        f"sampler: {shares}; the paper's host takes {host:.2f} times as long",
        f"overhead_per_request_s: {request_s:.4g}",
        f"overhead_per_sequence_s: {sequence_s:.4g}",
        f"sequences_per_fork: {per_fork:.3g}",
    ]
    for (name, width), measured in us.items():
        forks = forks_a_step(width) if name == "beam" else 0.0
        cost = (request_s + sequence_s * (width + per_fork * forks)) / PLAIN_S
        lines.append(
            f"{name} {width}: {measured:.0f} us of the sampler; costs {cost:.2f} plain requests"
        )
    return lines
