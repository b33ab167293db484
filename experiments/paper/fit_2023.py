"""Fits the two constants of the 2023 system that nobody measured: software time of an iteration and of a sequence.

python -m experiments.paper.fit_2023 SHAREGPT_LENGTHS.csv.gz [--cost analytic]

They are moved until vLLM's two bars of Figure 13, the two `calibrate` rows of paper/reference.csv, come out: ShareGPT
at 2 req/s from the file, Alpaca at 30 req/s from the embedded model. Nothing else is fitted to a published number.
The result stands in conf/cost/sosp23.yaml, which the figures use, or conf/cost/analytic.yaml, whose two are the
software time of a request and the attention kernel's share of the memory bandwidth.

Beside the constants it prints the elasticities, by how many percent a bar moves with one percent of a constant, and
standard errors: what the bars' spread over NUM_SEEDS seeds leaves open, for the paper's bars are of one trace.
"""

import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from experiments.commands.arguments import Parser
from experiments.commands.one_line import EXIT_BAD_INPUT, one_line
from experiments.paper.scorecard import reference
from experiments.runs.lab import Lab
from testbed.core.errors import InputError

COMMON = ("model=opt-13b", "+system=vllm", "window_s=[600,3600]")
PANELS = (("trace=sharegpt", "arrivals.rate=2"), ("trace=alpaca", "arrivals.rate=30"))
CONSTANTS = {
    "sosp23": ("choices.overhead_s", "choices.overhead_per_sequence_s"),
    "analytic": ("efficiencies.overhead_per_request_s", "efficiencies.attention_bandwidth"),
}
START = {"sosp23": (4.5e-4, 3.25e-4), "analytic": (3.3e-4, 0.57)}
STEP = {"sosp23": (5e-4, 1e-5), "analytic": (1e-5, 0.03)}  # differences; smaller ones drown in the jumps of a bar
TOLERANCE = 0.005  # a bar of one trace jumps by as much when a constant changes by a thousandth
MAX_ROUNDS = 12
NUM_SEEDS = 5
Vector = NDArray[np.float64]


def batched(panel: tuple[str, ...], seed: int, *, cost: str, constants: tuple[float, ...], lab: Lab) -> float:
    """Mean batched requests of vLLM in one panel with these constants."""
    values = {f"cost.{name}": value for name, value in zip(CONSTANTS[cost], constants, strict=True)}
    run = lab.measure((f"cost={cost}", *COMMON, *panel, f"seed={seed}"), values)
    return float(run.summary["batch"]["mean_per_iteration"])


def published() -> Vector:
    """The two bars to meet."""
    rows = reference().query("role == 'calibrate' and quantity == 'mean_batched_requests'")
    return rows["published"].astype(float).to_numpy()


class Fit:
    """Logarithms of the bars by constants in units of STEP; the two panels share the cores."""

    def __init__(self, lab: Lab, cost: str, pool: ProcessPoolExecutor) -> None:
        self.lab, self.cost, self._pool = lab, cost, pool
        self.unit = np.array(STEP[cost])

    def bars(self, x: Vector, seeds: int = 1) -> NDArray[np.float64]:
        """[seed, panel]."""
        constants = tuple((x * self.unit).tolist())
        run = partial(batched, cost=self.cost, constants=constants, lab=self.lab)
        asked = list(product(range(seeds), PANELS))
        found = self._pool.map(run, [panel for _, panel in asked], [seed for seed, _ in asked])
        bars = np.array(list(found)).reshape(seeds, len(PANELS))
        for seed, pair in enumerate(bars):
            told = ", ".join(f"{value:.4g}" for value in constants)
            print(f"{told}, seed {seed}: {pair[0]:.2f} {pair[1]:.2f}", flush=True)
        return np.log(bars)

    def error(self, x: Vector) -> Vector:
        """How far the bars of seed 0 are off."""
        return self.bars(x)[0] - np.log(published())

    def slopes(self, x: Vector, now: Vector) -> NDArray[np.float64]:
        """[bar, constant]: by how much a bar moves with one step of a constant."""
        return np.column_stack([self.error(x + unit) - now for unit in np.eye(2)])

    def solve(self) -> Vector:
        """Broyden's method; no constant goes below zero."""
        x = np.array(START[self.cost]) / self.unit
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
        errors, names = np.sqrt(np.diag(covariance)), CONSTANTS[self.cost]
        for name, value, error in zip(names, x * self.unit, errors * self.unit, strict=True):
            print(f"{name}: {value:.4g}  # standard error {error:.2g}")
        print(f"correlation of their errors: {covariance[0, 1] / errors.prod():+.2f}")
        for panel, row, sd in zip(PANELS, slopes * x, spread, strict=True):
            told = ", ".join(f"{elasticity:.3f} by {name}" for elasticity, name in zip(row, names, strict=True))
            print(f"elasticities of the bar of {panel[0]}: {told}; spread over {NUM_SEEDS} seeds {sd:.2%}")


def main() -> None:
    """Fit and print."""
    parser = Parser(prog="python -m experiments.paper.fit_2023", description=str(__doc__).splitlines()[0])
    parser.add_argument("lengths", type=Path, help="CSV of ShareGPT lengths in the artifact's order")
    parser.add_argument("--cost", choices=CONSTANTS, default="sosp23", help="which model's constants (default: sosp23)")
    try:
        options = parser.parse_args()
        with TemporaryDirectory() as folder, ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
            fit = Fit(Lab(Path(folder), (("sharegpt", str(options.lengths)),)), options.cost, pool)
            fit.report(fit.solve())
    except Exception as error:
        print(f"fit_2023: error: {one_line(error)}", file=sys.stderr)
        sys.exit(EXIT_BAD_INPUT)


if __name__ == "__main__":
    main()
