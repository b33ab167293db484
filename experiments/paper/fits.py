"""Fits the unmeasured constants to the `calibrate` rows of paper/reference.csv; nothing else is fitted.

Two of the 2023 system, the software time of an iteration and of a plain request, are moved until vLLM's two bars of
Figure 13 come out: ShareGPT at 2 req/s from a file of lengths, Alpaca at 30 req/s from the embedded model. The result
stands in conf/software/sosp23.yaml, which the figures use; sampler_fit.py says what of the second goes by sequence.
Printed with them: the elasticities, by how many percent a bar moves with one percent of a constant, and standard
errors: what the bars' spread over NUM_SEEDS seeds leaves open, for the paper's bars are of one trace.

How sure the synthetic beam model is of its next token is fitted to the beams of 2 of Figure 15b, and stands as
`concentration` in conf/beams/synthetic.yaml; beams of 4 and 6 are predictions.
"""

from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from math import sqrt
from multiprocessing import get_context

import numpy as np
from numpy.typing import NDArray

from testbed.core.errors import InputError
from testbed.experiments.paper.scorecard import reference
from testbed.experiments.runs.compose import composed
from testbed.experiments.runs.run_store import RunStore

PLAIN = "cost.choices.overhead_per_request_s=0"  # all requests are plain: one sequence each, whose time is all of it
COMMON = ("model=opt-13b", "+system=vllm", "window_s=[600,3600]", PLAIN)
PANELS = (("trace=sharegpt", "arrivals.rate=2"), ("trace=alpaca", "arrivals.rate=30"))
CONSTANTS = ("choices.overhead_s", "choices.overhead_per_sequence_s")
START = (4.5e-4, 3.25e-4)
STEP = (5e-4, 1e-5)  # differences; smaller ones drown in the jumps of a bar
TOLERANCE = 0.005  # a bar of one trace jumps by as much when a constant changes by a thousandth
MAX_ROUNDS = 12
NUM_SEEDS = 5
BEAMS = "opt-13b alpaca beam 2"
LOW, HIGH, PRECISION = 0.1, 10.0, 0.01
Vector = NDArray[np.float64]


def batched(panel: tuple[str, ...], seed: int, *, constants: tuple[float, ...], store: RunStore) -> float:
    """Mean batched requests of vLLM in one panel with these constants."""
    values = {f"cost.{name}": value for name, value in zip(CONSTANTS, constants, strict=True)}
    run = store.measure((*COMMON, *panel, f"seed={seed}"), values)
    return float(run.summary["batch"]["mean_per_iteration"])


def published() -> Vector:
    """The two bars to meet."""
    rows = reference().query("role == 'calibrate' and quantity == 'mean_batched_requests'")
    return np.array(rows["published"].astype(float))


class Fit:
    """Logarithms of the bars by constants in units of STEP; the two panels share the cores."""

    def __init__(self, store: RunStore, pool: ProcessPoolExecutor) -> None:
        self.store, self._pool = store, pool
        self.unit = np.array(STEP)

    def bars(self, x: Vector, seeds: int = 1) -> NDArray[np.float64]:
        """[seed, panel]."""
        constants = tuple((x * self.unit).tolist())
        run = partial(batched, constants=constants, store=self.store)
        requested = list(product(range(seeds), PANELS))
        found = self._pool.map(run, [panel for _, panel in requested], [seed for seed, _ in requested])
        bars = np.array(list(found)).reshape(seeds, len(PANELS))
        for seed, pair in enumerate(bars):
            text = ", ".join(f"{value:.4g}" for value in constants)
            print(f"{text}, seed {seed}: {pair[0]:.2f} {pair[1]:.2f}", flush=True)
        return np.asarray(np.log(bars))

    def error(self, x: Vector) -> Vector:
        """How far the bars of seed 0 are off."""
        return np.asarray(self.bars(x)[0] - np.log(published()))

    def slopes(self, x: Vector, now: Vector) -> NDArray[np.float64]:
        """[bar, constant]: by how much a bar moves with one step of a constant."""
        return np.stack([self.error(x + unit) - now for unit in np.eye(2)], axis=1)

    def solve(self) -> Vector:
        """Broyden's method; no constant goes below zero."""
        x: Vector = np.array(START) / self.unit
        now = self.error(x)
        jacobian = None
        for _ in range(MAX_ROUNDS):
            if np.abs(now).max() < TOLERANCE:
                return x
            jacobian = self.slopes(x, now) if jacobian is None else jacobian
            step = np.maximum(x + np.clip(np.linalg.solve(jacobian, -now), -1, 1), 0) - x
            x, after = x + step, self.error(x + step)
            jacobian += np.outer(after - now - jacobian @ step, step) / (step @ step)
            now = after
        raise InputError(f"no fit within {TOLERANCE:.1%} in {MAX_ROUNDS} rounds; the last: {x * self.unit}")

    def report(self, x: Vector) -> None:
        """The constants as lines for the YAML, with standard errors, and the elasticities of the bars."""
        slopes = self.slopes(x, self.error(x))
        spread = self.bars(x, NUM_SEEDS).std(axis=0, ddof=1)
        inverse = np.linalg.inv(slopes)
        covariance = inverse @ np.diag(spread**2) @ inverse.T
        errors = np.sqrt(np.diag(covariance))
        for name, value, error in zip(CONSTANTS, x * self.unit, errors * self.unit, strict=True):
            print(f"{name}: {value:.4g}  # standard error {error:.2g}")
        print(f"correlation of their errors: {covariance[0, 1] / errors.prod():+.2f}")
        for panel, row, sd in zip(PANELS, slopes * x, spread, strict=True):
            text = ", ".join(f"{elasticity:.3f} by {name}" for elasticity, name in zip(row, CONSTANTS, strict=True))
            print(f"elasticities of the bar of {panel[0]}: {text}; spread over {NUM_SEEDS} seeds {sd:.2%}")


def fit_2023(store: RunStore) -> None:
    """Print the two constants of the 2023 system."""
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        fit = Fit(store, pool)
        fit.report(fit.solve())


def fit_beams(store: RunStore) -> float:
    """Bisection: less sure candidates change parents more often, and share more."""
    rows = reference().query("setting == @BEAMS and role == 'calibrate'")
    goal = float(rows["published"].iloc[0])
    low, high = LOW, HIGH
    while high > low * (1 + PRECISION):
        middle = sqrt(low * high)
        found = saving(store, middle)
        print(f"concentration {middle:.3f}: {found:.2f}% saved, published {goal}%", flush=True)
        low, high = (low, middle) if found > goal else (middle, high)
    return sqrt(low * high)


def saving(store: RunStore, concentration: float) -> float:
    """Percent saved at beam width 2 under Figure 15's protocol."""
    figure = composed("figure/fig15", ()).figure
    panel = next(panel for panel in figure.panels if panel.setting == BEAMS)
    overrides = ("+system=vllm", *figure.common, *panel.overrides)
    summary = store.measure(overrides, {"beams.concentration": concentration}).summary
    return 100 * float(summary["memory_saving"]["per_iteration"])
